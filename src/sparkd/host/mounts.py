"""/proc/self/mounts: what is mounted where."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkd.host.files import Files

LIMIT_BYTES = 16 << 20
"""A host of many containers has some thousand lines."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_SIZE = re.compile(r"(\d+)([kmg]?)")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}


@dataclass(frozen=True)
class Mount:
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


def at(files: Files, target: str) -> Mount | None:
    """The mount that is seen at `target`: the last one there. None also for a tree of files that has no table."""
    found = None
    try:
        lines = files.text("/proc/self/mounts", limit=LIMIT_BYTES).splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        words = line.split(" ")
        if len(words) > 3 and _OCTAL.sub(lambda match: chr(int(match[1], 8)), words[1]) == target:
            found = Mount(target, words[2], tuple(words[3].split(",")))
    return found
