"""The beds of this machine, noted under /run: who owns each, and what to clear away when an owner was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cgroups
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

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
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
    for entry in list(entries()):
        if entry.owner.alive:
            continue
        if entry.keeper:
            entry.keeper.end()
        forget(entry)
        gone.append(entry.name)
    return gone
