"""Writes and removes files: whole or not at all, also over a power cut, and by one process at a time."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.lock import hold, open_lock
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.file import FOLDER, PUBLIC, STACKS, Content, StateFile, ignore_report

HINTS = {errno.ENOSPC: "make room: df -h", errno.EROFS: "it is mounted read-only: findmnt --options ro"}
"""Hints of a UsageError, by the number of the OSError."""
SETUP_LOCK = "run/sparkd/setup.lock"
"""The lock of commands that set up this node, below its root folder."""
KEPT_STACKS = 10
"""Most files with stacks of hung ranks; the oldest go."""
WRITE_LOCK_SECONDS = 5.0
"""Time for another process, which holds the lock of a file, to write that file."""


def write(path: Path, content: str | bytes, mode: int, *, durable: bool, overwrite: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `overwrite`, an existing file stays, and FileExistsError is raised. Also raises OSError, and
    SharedFolderError where only `run_as_owner` may write.
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
        if overwrite:
            Path(temporary).replace(path)
        else:
            path.hardlink_to(temporary)  # replaces no file, as a rename would
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


def compare_and_swap(files: Files, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
    """Write `after` in place of `before`, safe against a power cut. None: no file, so that None as `after` removes it.

    Returns False, and changes nothing, where the file holds something other than `before`. A file that can't be parsed
    counts as missing. Raises OSError.
    """

    def encode(value: Content | None) -> str | None:
        return None if value is None else file.encode(value)

    path = Path(files.real(FOLDER), file.name)
    with hold_write_lock(path):
        if encode(file.load(files, ignore_report)) != encode(before):
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
def hold_write_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file that several processes write; it is beside the file.

    Raises OSError where another process holds it for WRITE_LOCK_SECONDS.
    """
    refuse_shared(path.parent)
    with hold(open_lock(path.with_name(f".{path.name}.lock")), WRITE_LOCK_SECONDS) as is_held:
        if not is_held:
            raise BlockingIOError(errno.EAGAIN, "another process writes it")
        yield


def replace_head_files(files: Files, wanted: Mapping[str, bytes]) -> None:
    """Let HEAD_FILES have these by name, and no others. Takes as long as the disk does. Raises OSError."""
    folder = Path(files.real(HEAD_FILES))
    if not wanted and not folder.is_dir():
        return
    refuse_shared(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, content in wanted.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write(folder / name, content, 0o644, durable=True)  # for an image with another user
    for file in folder.iterdir():
        if file.name not in wanted:
            with suppress(OSError):  # such as a folder: what is left over holds up no start
                file.unlink()


def write_stacks(files: Files, name: str, text: Callable[[], str]) -> str:
    """Write a file for root alone, and keep the KEPT_STACKS newest. Returns its path. Raises OSError."""
    folder = Path(files.real(STACKS))
    write(folder / name, text(), 0o600, durable=False)
    folder.chmod(0o700)
    for old in sorted(folder.glob("*.txt"))[:-KEPT_STACKS]:
        old.unlink(missing_ok=True)
    return f"{STACKS}/{name}"


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def usage_error(reason: str, hint: str = AS_ROOT) -> Iterator[None]:
    """Raise UsageError in place of OSError, with the error's own hint where it has one."""
    try:
        yield
    except OSError as error:
        if hint == AS_ROOT and not os.geteuid():
            # The same command with sudo, and maybe with a secret in it, is no help.
            hint = "the disk: sudo dmesg; what is immutable: lsattr; what is mounted: findmnt"
        hint = getattr(error, "hint", HINTS.get(error.errno or 0, hint))  # a SharedFolderError's, or a FolderError's
        raise UsageError(f"{reason}: {error.strerror or error}", hint) from None


@contextmanager
def hold_command_lock(root: Path, name: str = SETUP_LOCK, commands: str = "`sparkd init` or `tune`") -> Iterator[None]:
    """Hold a lock that only one of some commands may have at a time. Raises UsageError where another one has it.

    `name`: path of the lock file below `root`; `commands`: those commands, for the error.
    """
    lock = root / name
    with usage_error(f"{lock} can't be opened"):
        refuse_shared(lock.parent)
        fd = open_lock(lock)
    with hold(fd) as is_held:
        if not is_held:
            raise UsageError(f"another {commands} is under way", "wait for it")
        yield
