"""/proc/PID/mounts: what is mounted where."""

from __future__ import annotations

import re

from msgspec import Struct

from sparkd.host.files import Files

LIMIT_BYTES = 16 << 20
"""A host of many containers has some thousand lines."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_SIZE = re.compile(r"(\d+)([kmg]?)")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}


class Mount(Struct, frozen=True):
    target: str
    kind: str
    """Of file system."""
    options: tuple[str, ...]

    def size_bytes(self, memory_bytes: int) -> int:
        """Of a tmpfs: where it does not say, it is half of the memory; 0 is as much as there is."""
        for option in self.options:
            name, _, value = option.partition("=")
            if name == "size" and (match := _SIZE.fullmatch(value)):
                return (int(match[1]) << _UNITS[match[2]]) or memory_bytes
        return memory_bytes // 2


def table(files: Files, process: str) -> tuple[Mount, ...]:
    """As a process sees them (`self`, `1`), in their order: a later one on the same target hides those before it."""
    rows = (line.split(" ") for line in files.text(f"/proc/{process}/mounts", limit=LIMIT_BYTES).splitlines())
    return tuple(
        Mount(_OCTAL.sub(lambda match: chr(int(match[1], 8)), row[1]), row[2], tuple(row[3].split(",")))
        for row in rows
        if len(row) > 3
    )


def at(files: Files, target: str) -> Mount | None:
    """The mount that is seen at `target`: the last one there. None also for a tree of files that has no table."""
    try:
        mounts = table(files, "self")
    except FileNotFoundError:
        return None
    return next((one for one in reversed(mounts) if one.target == target), None)
