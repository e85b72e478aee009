"""/proc/swaps: where the kernel may put memory that it takes from processes."""

from __future__ import annotations

import re

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

_OCTAL = re.compile(r"\\([0-7]{3})")


class Swap(Struct, frozen=True):
    path: str
    bytes: int
    used_bytes: int

    @property
    def in_memory(self) -> bool:
        """zram: compressed, in the memory that it is to relieve."""
        return self.path.startswith("/dev/zram")


def read(files: Files) -> tuple[Swap, ...]:
    """Every area that is on; none where the kernel knows no swap. Raises OSError, and ValueError for another format."""
    try:
        lines = files.text("/proc/swaps", limit=65536).splitlines()
    except FileNotFoundError:
        return ()
    found = []
    for line in lines[1:]:
        words = line.split()
        try:
            path, _kind, kib, used_kib, _priority = words
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)
            found.append(Swap(sanitize(path, 256), int(kib) * 1024, int(used_kib) * 1024))
        except ValueError:
            raise ValueError(f"/proc/swaps has another format: {sanitize(line, 80)!r}") from None
    return tuple(found)
