"""Writes and removes files: whole or not at all, also over a power cut, and by one process at a time."""

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkd.agent.actions.shared_folders import SharedFolderError, refuse_shared
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import LaunchError, UsageError
from sparkd.base.lib.lock import hold, open_lock
from sparkd.base.plan.script import HOSTS_TARGET
from sparkd.base.state.file import FOLDER, PUBLIC, Content, StateFile, ignore_report

HOSTS_LIMIT_BYTES = 64 << 20
"""Largest size of the node's own /etc/hosts: long lists of blocked names have some 10 MB."""
_REMEDIES = {errno.ENOSPC: "make room: df -h", errno.EROFS: "it is mounted read-only: findmnt --options ro"}
SETUP_LOCK = "run/sparkd/setup.lock"
LOCK_SECONDS = 5.0
"""Limit for another process that holds the lock to write its one file."""


def write(path: Path, content: str | bytes, mode: int, *, durable: bool, over: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `over`, an existing file stays. Raises FileExistsError then; SharedFolderError where only `as_owner` may
    write; OSError.
    """
    refuse_shared(path.parent)
    _make_folders(path.parent)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        if over:
            Path(temporary).replace(path)
        else:
            path.hardlink_to(temporary)
            Path(temporary).unlink()
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def _make_folders(folder: Path) -> None:
    """Make the missing ones, for all to read whatever the umask: sudo keeps a user's 077."""
    if not folder.exists():
        _make_folders(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o755)


def remove(path: Path) -> bool:
    """Remove a file for good, also over a power cut; whether there was one. Raises OSError, SharedFolderError."""
    refuse_shared(path.parent)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def write_hosts(files: Files, path: Path, names: Iterable[tuple[str, str]]) -> None:
    """Write the node's own /etc/hosts, as docker gives it to a container in the node's network, with these names.

    Raises LaunchError.
    """
    own_content = b""
    try:
        with suppress(FileNotFoundError):
            own_content = files.bytes(HOSTS_TARGET, HOSTS_LIMIT_BYTES)
    except OSError as error:
        raise LaunchError(f"{HOSTS_TARGET} can't be read: {error.strerror}", f"ls -lL {HOSTS_TARGET}") from None
    added = "".join(f"{address} {name}\n" for address, name in names)
    write(path, own_content + b"\n" * (own_content[-1:] not in (b"", b"\n")) + added.encode(), 0o644, durable=False)


def exchange(files: Files, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
    """Write `after` in place of `before`, or remove the file where that is None; it survives a power cut.

    Returns False where the file holds something else. A file that can't be parsed counts as missing. Raises OSError.
    """

    def dump(value: Content | None) -> str | None:
        return None if value is None else file.encode(value)

    path = Path(files.real(FOLDER), file.name)
    with alone(path.with_name(f".{path.name}.lock")):
        if dump(file.load(files, ignore_report)) != dump(before):
            return False
        try:
            if after is None:
                return remove(path)
            write(path, file.encode(after), file.mode, durable=True)
            return True
        finally:
            # Also after an error: a needless notice does no harm. A full /run does not undo what is written.
            if file.notice:
                with suppress(OSError):
                    write(Path(files.real(file.notice)), "", PUBLIC, durable=False)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Let one process in at a time. Raises OSError where another one keeps the lock for LOCK_SECONDS."""
    refuse_shared(lock.parent)
    with hold(open_lock(lock), LOCK_SECONDS) as is_held:
        if not is_held:
            raise BlockingIOError(errno.EAGAIN, "another process writes it")
        yield


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def usage_error(reason: str, hint: str = "run it as root") -> Iterator[None]:
    """Raise UsageError in place of OSError."""
    try:
        yield
    except SharedFolderError as error:
        raise UsageError(f"{reason}: {error.reason}", error.hint) from None
    except OSError as error:
        raise UsageError(f"{reason}: {error.strerror or error}", _REMEDIES.get(error.errno or 0, hint)) from None


@contextmanager
def locked(root: Path, name: str = SETUP_LOCK, commands: str = "`sparkd init` or `tune`") -> Iterator[None]:
    """Let one of these commands in at a time. Raises UsageError where another one is under way."""
    lock = root / name
    with usage_error(f"{lock} can't be opened"):
        refuse_shared(lock.parent)
        fd = open_lock(lock)
    with hold(fd) as is_held:
        if not is_held:
            raise UsageError(f"another {commands} is under way", "wait for it")
        yield
