"""The files that hold a model's weights, as the kernel knows them, and which of them programs use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from msgspec import Struct

from sparkd.host import shm
from sparkd.host.files import Files, Kind
from sparkd.host.processes import Process
from sparkd.host.weights import WEIGHTS

_DIGITS = re.compile(r"(\d+)")


class Shard(Struct, frozen=True):
    path: str
    name: str
    """Of the file itself, where `path` is a symlink to it."""
    device: int
    inode: int
    size_bytes: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


class InUse(Struct, frozen=True):
    """Identities of shards that are open or mapped; `sure`: every process could be looked at."""

    found: frozenset[tuple[int, int]]
    sure: bool


def of_model(files: Files, folder: str) -> tuple[Shard, ...]:
    """In the order that vLLM loads them: by name, numbers as numbers. Raises OSError where the folder can't be read."""
    found: dict[tuple[int, int], Shard] = {}
    for name in sorted(files.names(folder), key=_order):
        if not name.endswith(WEIGHTS):
            continue
        path = f"{folder}/{name}"
        try:
            facts = files.stat(path)
        except FileNotFoundError:
            continue
        if facts.kind is Kind.FILE:
            real = os.path.realpath(files.real(path)).rpartition("/")[2]
            shard = Shard(path, real, facts.device, facts.inode, facts.size_bytes)
            found.setdefault(shard.identity, shard)
    return tuple(found.values())


def in_use(files: Files, processes: Iterable[Process], shards: Iterable[Shard]) -> InUse:
    """By the processes' maps and descriptors: a loader may map a shard, or read it."""
    uses = shm.uses(files, processes, shards)
    return InUse(frozenset((device, inode) for device, inode, _ in uses.used), sure=not uses.unreadable_pids)


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]
