"""Writes and removes files: whole or not at all, also over a power cut, and by one process at a time."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.base.host.files import Files
from sparkd.base.lib.lock import hold, open_lock
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state.file import FOLDER, PUBLIC, STACKS, Content, StateFile, ignore_report

KEPT_STACKS = 10
"""Most files with stacks of hung ranks; the oldest go."""
WRITE_LOCK_SECONDS = 5.0
"""Time for another process, which holds the lock of a file, to write that file."""


def write(path: Path, content: str | bytes, mode: int, *, durable: bool, overwrite: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `overwrite`, an existing file stays, and FileExistsError is raised. Also raises OSError, and
    SharedFolderError where others than root may write to the folder.
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
    """Make missing folders with mode 755, whatever the umask (sudo keeps the user's)."""
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
    """Make `wanted` the only files in HEAD_FILES. Takes as long as the disk does. Raises OSError."""
    folder = Path(files.real(HEAD_FILES))
    if not wanted and not folder.is_dir():
        return
    refuse_shared(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name, content in wanted.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write(folder / name, content, 0o644, durable=True)  # the container's user may not be root
    for file in folder.iterdir():
        if file.name not in wanted:
            with suppress(OSError):  # such as a folder: what is left over holds up no start
                file.unlink()


def write_stacks(files: Files, name: str, make_text: Callable[[], str]) -> str:
    """Write a file for root alone, and keep the KEPT_STACKS newest. Returns its path. Raises OSError."""
    folder = Path(files.real(STACKS))
    write(folder / name, make_text(), 0o600, durable=False)  # made here: it may take long
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
