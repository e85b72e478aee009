"""Folders that others than root may write to.

A user who may write to a folder can put a link in place of what is in it at any time, and so lead root to another file.
There root writes with the ids of that user, or not at all.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from stat import S_ISVTX

from msgspec.json import decode, encode

from sparkd.base.host.files import Files
from sparkd.base.host.ownership import find_writable
from sparkd.base.lib.errors import UsageError

RUN = Path("/run/sparkd")
"""systemd makes it for root alone, in memory: what is written there often, by the main thread too, is not judged."""


class SharedFolderError(UsageError, OSError):
    """Nothing is written there as root. An OSError too: a file that an agent can't write ends no engine."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.errno, self.strerror = errno.EPERM, reason


def find_shared(folder: Path, *, sticky: bool = True) -> str:
    """What others than root may write to: the folder, or what leads to it. Empty where nothing, or without root.

    `sticky`: whether a folder such as /tmp will do. Nobody replaces there what root has made, but anybody may make
    first what root will open.
    """
    if os.geteuid() or folder.is_relative_to(RUN):
        return ""
    wanted = there = folder.absolute()
    while not os.path.lexists(there):
        there = there.parent
    return find_writable(Files(), str(there), sticky=sticky and there == wanted)


def refuse_shared(folder: Path) -> None:
    """Raises SharedFolderError where others than root may write to it."""
    if writable := find_shared(folder):
        raise _refused(writable)


def as_owner(folder: Path, work: Callable[[], object], private: str = "") -> None:
    """Do `work`, which makes or replaces files in `folder`; where a user may write there, in a process with their ids.

    `private`: only root may read it, and this command has another place for it. It goes to no other user than the one
    who became root by sudo. Raises SharedFolderError, and OSError as `work` does.
    """
    if not (writable := find_shared(folder)):
        work()
        return
    uid, gid = _owner_of(writable)
    if private and os.environ.get("SUDO_UID") != str(uid):
        raise SharedFolderError(f"it is for root alone, and uid {uid} may write to {writable}", private)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        _work_as(uid, gid, work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        fault = pipe.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if fault:
        raise OSError(*decode(fault, type=tuple[int, str, str]))
    if ended:
        raise OSError(f"what was to write to {folder} as uid {uid} ended with {ended}")


def _work_as(uid: int, gid: int, work: Callable[[], object], writer: int) -> None:
    """Runs in the child; never returns."""
    code = 1
    try:
        _take_ids(uid, gid)
        work()
        code = 0
    except OSError as error:
        where = str(error.filename2 or error.filename or "")
        os.write(writer, encode((error.errno or 0, error.strerror or str(error), where)))
    finally:
        os._exit(code)


def become_owner(folder: Path) -> None:
    """Continue for good with the ids of `find_owner`, if any. Raises as that."""
    if ids := find_owner(folder):
        _take_ids(*ids)


def find_owner(folder: Path) -> tuple[int, int] | None:
    """As root, the ids of the user who may write to `folder`, or on the way to it; None where only root may.

    With these a link that they have planted there leads to nothing that is not theirs anyway, and what is made is
    theirs. Raises SharedFolderError where that may be several users.
    """
    writable = find_shared(folder, sticky=False)
    return _owner_of(writable) if writable else None


def _take_ids(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _owner_of(writable: str) -> tuple[int, int]:
    """Ids of its owner. The group is the user's own: a folder's may be one that they are not in."""
    folder = os.lstat(writable)
    if folder.st_uid == 0:
        raise _refused(writable)
    with suppress(KeyError):
        return folder.st_uid, pwd.getpwuid(folder.st_uid).pw_gid
    return folder.st_uid, folder.st_gid


def _refused(writable: str) -> SharedFolderError:
    folder, name = os.lstat(writable), quote(writable)
    own = f"sudo chown -h root: {name} && " if folder.st_uid else ""
    hint = f"look at what is in it, then: {own}sudo chmod go-w {name}; or take a folder that only root may write to"
    if folder.st_mode & S_ISVTX:
        hint = f"take a folder of your own: mktemp -d {quote(f'{writable}/sparkd-XXXX')}"
    return SharedFolderError(f"nothing is written there as root: others may write to {writable}", hint)
