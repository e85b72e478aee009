"""Control groups of a bed: one for each node, to limit its memory and to freeze it.

    BED/NODE            the limit on memory; frozen here
    BED/NODE/machine    nspawn, and below it all of the node
    BED/NODE/visitors   commands that the tests run in the node

The unified hierarchy always exists; where memory is still in a version 1 hierarchy, BED/NODE is made there as well.
Nothing here uses cgroup.kill: on a kernel 6.18 a group that was once killed so kills whatever starts in it later.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .command import Argument, BedError, words
from .processes import wait_for

PREFIX = "sparkd-bed."


@dataclass(frozen=True)
class Hierarchies:
    unified: Path
    memory_v1: Path | None
    all: tuple[Path, ...]  # others too: nspawn makes its group in systemd's own one, where that is of version 1


def hierarchies() -> Hierarchies:
    unified: Path | None = None
    memory: Path | None = None
    every: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        at, kind, options = Path(before.split()[4]), after.split()[0], after.split()[2].split(",")
        if kind in ("cgroup", "cgroup2"):
            every.append(at)
        if kind == "cgroup2" and unified is None:
            unified = at
        elif kind == "cgroup" and "memory" in options and memory is None:
            memory = at
    if unified is None:
        raise BedError("this machine has no unified cgroup hierarchy (cgroup2) mounted")
    return Hierarchies(unified, memory, tuple(every))


@dataclass(frozen=True)
class NodeGroup:
    bed: str
    node: str

    @property
    def unified(self) -> Path:
        return hierarchies().unified / (PREFIX + self.bed) / self.node

    @property
    def memory_v1(self) -> Path | None:
        root = hierarchies().memory_v1
        return root / (PREFIX + self.bed) / self.node if root else None

    def make(self) -> None:
        self.unified.mkdir(parents=True, exist_ok=True)
        for parent in (self.unified.parents[1], self.unified.parent, self.unified):
            for controller in (parent / "cgroup.controllers").read_text().split():
                _try_write(parent / "cgroup.subtree_control", f"+{controller}")
        for leaf in ("machine", "visitors"):
            (self.unified / leaf).mkdir(exist_ok=True)
        if self.memory_v1:
            self.memory_v1.mkdir(parents=True, exist_ok=True)

    def limit_memory(self, limit_bytes: int | None) -> None:
        value = "max" if limit_bytes is None else str(limit_bytes)
        file = self.unified / "memory.max"
        if self.memory_v1:
            file, value = self.memory_v1 / "memory.limit_in_bytes", value.replace("max", "-1")
        if not file.exists():
            raise BedError("the memory of a node cannot be limited here: no memory controller")
        file.write_text(value)

    def freeze(self, frozen: bool) -> None:
        (self.unified / "cgroup.freeze").write_text("1" if frozen else "0")
        wanted = f"frozen {int(frozen)}"
        wait_for(lambda: wanted in (self.unified / "cgroup.events").read_text(), 20, f"{self.node} to be {wanted}")

    def entered(self, leaf: str, *argv: Argument) -> list[str]:
        """The command that joins this group and becomes `argv`."""
        files = [self.unified / leaf / "cgroup.procs"]
        if self.memory_v1:
            files.append(self.memory_v1 / "cgroup.procs")
        joins = "".join(f"echo 0 > {file} && " for file in files)
        return ["sh", "-c", f'{joins} exec "$@"', "sh", *words(argv)]

    def pids(self) -> Iterator[int]:
        """Of every process in the node, as this machine numbers them."""
        for folder, _, _ in os.walk(self.unified):
            try:
                yield from (int(word) for word in Path(folder, "cgroup.procs").read_text().split())
            except OSError:
                continue

    def clear(self) -> None:
        """Remove what a dead node left below; the limit on its memory stays."""
        self.freeze(False)
        remove(self.unified / "machine")
        self.make()


def _try_write(file: Path, value: str) -> None:
    with contextlib.suppress(OSError):  # the controller stays unused: only limit_memory needs one, and says so
        file.write_text(value)


def remove(top: Path) -> None:
    """A whole tree of empty groups; the kernel takes a moment to see that they are empty."""
    for folder, _, _ in os.walk(top, topdown=False):
        wait_for(partial(_removed, Path(folder)), 10, f"the end of all in {folder}")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_bed(bed: str) -> None:
    for root in hierarchies().all:
        remove(root / (PREFIX + bed))
