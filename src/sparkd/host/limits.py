"""/proc/PID/limits: what a process may take at most."""

from __future__ import annotations

from sparkd.host.files import Files

UNLIMITED = -1
_MEMLOCK = "Max locked memory"


def locked_memory(files: Files, pid: int) -> int:
    """The limit in force, in bytes; -1 where there is none. Raises OSError, and ValueError for another format."""
    for line in files.text(f"/proc/{pid}/limits", limit=65536).splitlines():
        if line.startswith(_MEMLOCK):
            words = line.removeprefix(_MEMLOCK).split()
            if words[:1] == ["unlimited"]:
                return UNLIMITED
            if words[:1] and words[0].isdecimal():
                return int(words[0])
    raise ValueError(f"/proc/{pid}/limits does not say how much memory may be locked")
