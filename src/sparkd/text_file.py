"""Text that a person wrote, read with care: a regular file of sane size, in UTF-8."""

from __future__ import annotations

import stat
from pathlib import Path

from sparkd.errors import ConfigError

LIMIT_BYTES = 1024 * 1024


def read(path: Path) -> str:
    """The text of `path`. Raises FileNotFoundError where there is nothing, ConfigError for every other fault."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path}: is no regular file")
        with path.open("rb") as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(f"{path}: is a link to a file that does not exist") from None
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{path}: is larger than {LIMIT_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: is no UTF-8 text") from None
