"""The text of files that people write: configuration, recipes."""

import errno
import os
import stat
from pathlib import Path

from sparkd.base.lib.errors import AwaitedError, ConfigError, unreadable

LIMIT_BYTES = 1 << 20
"""Limit of a file that a person wrote."""


def read_file(path: Path) -> str:
    """The UTF-8 text of a regular file. Raises FileNotFoundError, or ConfigError for any other fault."""
    return read_owned_file(path)[0]


def read_owned_file(path: Path, folder: str = "") -> tuple[str, int]:
    """The text, as `read_file` returns it, and its owner's uid. `folder`: the file must be in it, and be no link."""
    try:
        content, owner = _read_regular(path, folder)
    except FileNotFoundError:
        refuse_dangling(path)
        raise
    except OSError as error:
        try_sudo = "; try sudo" if error.errno == errno.EACCES and os.geteuid() else ""
        raise unreadable(error)(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}{try_sudo}") from None
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{path}: is larger than {LIMIT_BYTES} bytes")
    try:
        return content.decode("utf-8-sig"), owner
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: is no UTF-8 text") from None


def refuse_dangling(path: Path) -> None:
    """Raises AwaitedError where a path at which nothing was found is a link: its target may be on a late mount."""
    if path.is_symlink():
        hint = "correct the link, or mount what it leads to"
        raise AwaitedError(f"{path}: is a link to a file that does not exist", hint) from None


def _read_regular(path: Path, folder: str) -> tuple[bytes, int]:
    """LIMIT_BYTES and one more at most, and the owner. What is checked is read: a user may exchange the file."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if folder else 0))
    try:
        status = os.fstat(fd)
        # Another user may have put a link in the place of a folder on the way.
        if folder and not Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(folder):
            raise ConfigError(f"{path}: leads out of {folder}")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path}: is no regular file")
        with Path(f"/proc/self/fd/{fd}").open("rb") as stream:
            return stream.read(LIMIT_BYTES + 1), status.st_uid
    finally:
        os.close(fd)
