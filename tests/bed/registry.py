"""The beds of this machine, noted under /run: who owns each, and what to clear away when an owner was killed."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cgroups
from .cache import say
from .command import BedError
from .processes import Identity

HOME = Path("/run/sparkd-bed")


@dataclass(frozen=True)
class Entry:
    """One bed. Written when it is made, before anything of it exists, and again with its keeper."""

    name: str
    owner: Identity
    keeper: Identity | None = None

    @property
    def folder(self) -> Path:
        return HOME / self.name

    def create(self) -> None:
        if (self.folder / "bed.json").exists():
            raise BedError(f"there is a bed named {self.name} already")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save()

    def save(self) -> None:
        write_json(self.folder / "bed.json", asdict(self))


def write_json(file: Path, value: object) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(file)


def read_identity(file: Path) -> Identity | None:
    try:
        return Identity(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None


def note_node(bed: str, name: str, docker: bool) -> None:
    write_json(HOME / bed / f"{name}.node.json", {"docker": docker})


def unnote_node(bed: str, name: str) -> None:
    (HOME / bed / f"{name}.node.json").unlink(missing_ok=True)


def nodes_of(bed: str) -> list[str]:
    """By name, whether on or off."""
    return sorted(file.name.partition(".")[0] for file in (HOME / bed).glob("*.node.json"))


def noted_nodes(entry: Entry) -> dict[str, bool]:
    """Name -> has docker."""
    notes = {name: entry.folder / f"{name}.node.json" for name in nodes_of(entry.name)}
    return {name: bool(json.loads(file.read_text())["docker"]) for name, file in notes.items()}


def entries() -> Iterator[Entry]:
    for file in sorted(HOME.glob("*/bed.json")):
        try:
            noted = json.loads(file.read_text())
        except FileNotFoundError:
            continue
        keeper = Identity(**noted["keeper"]) if noted["keeper"] else None
        yield Entry(noted["name"], Identity(**noted["owner"]), keeper)


def forget(entry: Entry) -> None:
    """The last of a bed: its groups and its note."""
    cgroups.remove_bed(entry.name)
    shutil.rmtree(entry.folder, ignore_errors=True)


def reap() -> list[str]:
    """Clear away the beds whose owner is dead. Their disks go when the pool is mounted next."""
    gone = []
    for bed in list(entries()):
        if bed.owner.alive:
            continue
        try:
            if bed.keeper:
                bed.keeper.end()
            forget(bed)
        except BedError as error:
            say(f"{bed.name}: not all of it is gone: {error}")
        else:
            gone.append(bed.name)
    return gone
