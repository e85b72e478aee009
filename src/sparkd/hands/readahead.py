"""The disk's readahead, lowered for a load and given its own value again, whatever ends the load.

What it was stands in a file until it is given back, so that the agent after one that was killed knows. Both are gone
with the next boot.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from msgspec import Struct

from sparkd.hands import files
from sparkd.host import Host, readahead

FILE = "readahead.json"

_SETTING = re.compile(rf"{readahead.BDI}/\d+:\d+/read_ahead_kb")


class Change(Struct, frozen=True):
    path: str
    before_kib: int
    after_kib: int


def lower(host: Host, folder: str, kib: int, memory: Path) -> Change | None:
    """For the disk that holds `folder`; None where that reads no further ahead already. Raises OSError, ValueError.

    What an earlier agent has lowered and not given back, of this disk or of another, is given back first: the value of
    that agent's would be remembered as the disk's own.
    """
    restore(host, memory)
    path = readahead.setting(host.files, folder)
    before = readahead.kib(host.files, path)
    if before <= kib:
        return None
    change = Change(path, before, kib)
    files.write(memory, json.dumps({"path": path, "before_kib": before, "after_kib": kib}) + "\n", 0o644, durable=False)
    try:
        _set(host, path, kib)
    except OSError:
        memory.unlink()
        raise
    return change


def restore(host: Host, memory: Path) -> Change | None:
    """Give back what `lower` took; None where there is nothing to give back. Raises OSError.

    What somebody else has set meanwhile stays.
    """
    change = _remembered(memory)
    if change is None:
        return None
    try:
        ours = readahead.kib(host.files, change.path) == change.after_kib
        if ours:
            _set(host, change.path, change.before_kib)
    except (FileNotFoundError, ValueError):  # the disk is gone
        ours = False
    memory.unlink(missing_ok=True)
    return Change(change.path, change.after_kib, change.before_kib) if ours else None


def _remembered(memory: Path) -> Change | None:
    try:
        found: object = json.loads(memory.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    match found:
        case {"path": str(path), "before_kib": int(before), "after_kib": int(after)} if _SETTING.fullmatch(path):
            return Change(path, before, after)
    return None


def _set(host: Host, path: str, kib: int) -> None:
    Path(host.files.real(path)).write_text(f"{kib}\n", encoding="ascii")
