"""Write and remove files: whole or not at all, also over a power cut."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkd.lib.errors import UsageError


def write(path: Path, text: str, mode: int, *, durable: bool, over: bool = True) -> None:
    """Replace `path` in one step. `durable`: also over a power cut (on ext4, a file without fsync came back empty).

    Without `over`, an existing file stays: FileExistsError.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
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


def remove(path: Path) -> bool:
    """Whether there was one to remove; it does not come back after a power cut. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def usage_error(reason: str, hint: str = "run it as root") -> Iterator[None]:
    """Raises UsageError in place of OSError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{reason}: {error.strerror or error}", hint) from None
