"""Lowers the readahead of a disk for a load, and restores it.

Readahead is a setting of the device under a file system. A file keeps its old value until that is restored, so that
the next agent can restore it where this one is killed. The setting and the file are gone with the next boot.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode, encode

from sparkd.agent.actions import files
from sparkd.base.host import Host
from sparkd.base.lib import prepared

READAHEAD_FILE = "readahead.json"
BDI = "/sys/class/bdi"
"""One folder for each device that caches: disks by the number of the whole disk, NFS by the file system's own."""

_SETTING = re.compile(rf"{BDI}/\d+:\d+/read_ahead_kb")


class ReadaheadChange(Struct, frozen=True):
    path: str
    before_kib: int
    after_kib: int


def find_readahead_setting(host: Host, folder: str) -> str:
    """Path of the setting for the files in `folder`. Raises OSError; FileNotFoundError where there is none (tmpfs)."""
    device = host.files.stat(folder).device
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(FileNotFoundError, NotADirectoryError):
        # A partition reads ahead as its disk does. The folder above a partition's is the disk's.
        if host.files.exists(f"/sys/dev/block/{number}/partition"):
            number = host.files.value(f"/sys/dev/block/{number}/../dev")
    path = f"{BDI}/{number}/read_ahead_kb"
    host.files.stat(path)
    return path


def lower_readahead(host: Host, folder: str, kib: int, saved_file: Path) -> ReadaheadChange | None:
    """Lower the readahead of the disk that holds `folder`. None where it is `kib` or less already.

    What an earlier agent lowered, on this disk or another, is restored first: else the lowered value would be saved as
    the disk's own. Raises OSError, ValueError.
    """
    restore_readahead(host, saved_file)
    path = find_readahead_setting(host, folder)
    change = ReadaheadChange(path, int(host.files.value(path)), kib)
    if change.before_kib <= kib:
        return None
    files.write(saved_file, encode(change).decode() + "\n", 0o644, durable=False)
    try:
        _write_kib(host, path, kib)
    except OSError:
        saved_file.unlink()
        raise
    return change


def restore_readahead(host: Host, saved_file: Path) -> ReadaheadChange | None:
    """Undo `lower_readahead`. None where nothing was to undo, as where another program set a value. Raises OSError."""
    try:
        change = decode(saved_file.read_text(encoding="utf-8"), type=prepared(ReadaheadChange))
    except (FileNotFoundError, ValueError):
        return None
    if not _SETTING.fullmatch(change.path):
        return None
    try:
        is_own_value = int(host.files.value(change.path)) == change.after_kib
        if is_own_value:
            _write_kib(host, change.path, change.before_kib)
    except (FileNotFoundError, ValueError):  # the disk is gone
        is_own_value = False
    saved_file.unlink(missing_ok=True)
    return ReadaheadChange(change.path, change.after_kib, change.before_kib) if is_own_value else None


def _write_kib(host: Host, path: str, kib: int) -> None:
    Path(host.files.real(path)).write_text(f"{kib}\n", encoding="ascii")
