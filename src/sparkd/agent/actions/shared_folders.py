"""Writes to folders that others than root may write to.

A user who may write to a folder can replace what is in it by a link at any time, and so lead root to another file. In
such a folder root writes with the ids of that user, or not at all.
"""

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
"""systemd makes it, in memory and for root alone. It is not judged: the main thread, too, writes there often."""


class SharedFolderError(UsageError, OSError):
    """Root does not write to this folder. It is an OSError too: a file that an agent can't write ends no engine."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.errno, self.strerror = errno.EPERM, reason


def find_shared(folder: Path, *, allow_sticky: bool = True) -> str:
    """The path that others than root may write to: `folder` or one above it. Empty where none is, or without root.

    `allow_sticky`: leave out a folder such as /tmp, where nobody can replace what root has made. Without it such a
    folder counts: anybody may be the first to make what root will open.
    """
    if os.geteuid() or folder.is_relative_to(RUN):
        return ""
    # In a sticky folder anybody may be the first to make `folder` itself, which is then theirs.
    return find_writable(Files(), str(folder.absolute()), sticky=allow_sticky)


def refuse_shared(folder: Path) -> None:
    """Raises SharedFolderError where others than root may write to it."""
    if writable := find_shared(folder):
        raise _make_error(writable)


def run_as_owner(folder: Path, work: Callable[[], object], private_hint: str = "") -> None:
    """Do `work`, which makes or replaces files in `folder`: in a process with the ids of the user who may write there.

    `private_hint`: the hint of a refusal, given where only root may read the content. Such content goes to no other
    user than the one who became root by sudo. Raises SharedFolderError, and OSError as `work` does.
    """
    if not (writable := find_shared(folder)):
        work()
        return
    uid, gid = _find_ids(writable)
    if private_hint and os.environ.get("SUDO_UID") != str(uid):
        raise SharedFolderError(f"it is for root alone, and uid {uid} may write to {writable}", private_hint)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        _work_as(uid, gid, work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        fault = pipe.read()
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if fault:
        raise OSError(*decode(fault, type=tuple[int, str, str]))
    if exit_code:
        raise OSError(f"what was to write to {folder} as uid {uid} ended with {exit_code}")


def _work_as(uid: int, gid: int, work: Callable[[], object], writer: int) -> None:
    """Do `work` in the child process; never returns. An OSError goes to the parent through `writer`."""
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
    """Take the ids of `find_owner`, if any, for the rest of this process. Raises as `find_owner`."""
    if ids := find_owner(folder):
        _take_ids(*ids)


def find_owner(folder: Path) -> tuple[int, int] | None:
    """The ids of the user who may write to `folder`, or to one above it; None where only root may, or without root.

    With these ids a link that the user has planted leads only to their own files, and new files are theirs. Raises
    SharedFolderError where several users may write there.
    """
    writable = find_shared(folder, allow_sticky=False)
    return _find_ids(writable) if writable else None


def _take_ids(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _find_ids(writable: str) -> tuple[int, int]:
    """User and group of the folder's owner. The group is the user's: they may not be in the folder's."""
    folder = _read_facts(writable)
    if folder.st_uid == 0:
        raise _make_error(writable)
    with suppress(KeyError):
        return folder.st_uid, pwd.getpwuid(folder.st_uid).pw_gid
    return folder.st_uid, folder.st_gid


def _read_facts(writable: str) -> os.stat_result:
    """Raises SharedFolderError where root can't read them, as on a user's own file system."""
    try:
        return os.lstat(writable)
    except OSError as error:
        reason = f"nothing is written there as root, which can't look at {writable}: {error.strerror}"
        raise SharedFolderError(reason, f"if it is a user's mount: sudo umount {quote(writable)}") from None


def _make_error(writable: str) -> SharedFolderError:
    folder, name = _read_facts(writable), quote(writable)
    chown = f"sudo chown -h root: {name} && " if folder.st_uid else ""
    hint = f"look at what is in it, then: {chown}sudo chmod go-w {name}; or take a folder that only root may write to"
    if folder.st_mode & S_ISVTX:
        hint = f"take a folder of your own: mktemp -d {quote(f'{writable}/sparkd-XXXX')}"
    return SharedFolderError(f"nothing is written there as root: others may write to {writable}", hint)
