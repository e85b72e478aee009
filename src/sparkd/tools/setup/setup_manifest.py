"""The files that `sparkd init` writes, and the way back: a manifest is on disk before each change."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from sparkd.agent.actions import files
from sparkd.base.host.files import Files, Kind
from sparkd.base.lib.errors import ConfigError
from sparkd.base.state.file import StateFile

LIMIT_BYTES = 1 << 20


class Written(Struct, frozen=True):
    path: str
    before: str | None
    """Content before the first change; None: there was no file."""
    sha256: str
    """The digest of what was written."""
    replaced_sha256: str = ""
    """The digest of what was there until then: after a power cut it may be there still."""

    def is_edited(self, now: str) -> bool:
        """Whether a person has changed the file since."""
        return _digest(now) not in (self.sha256, self.replaced_sha256)


class Manifest(Struct, frozen=True):
    files: tuple[Written, ...]


FILE = StateFile("setup.json", Manifest)


class Setup:
    """The machine below `root`. Raises UsageError where this user may not change it, ConfigError for unfit files."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self.files = root, Files(str(root))

    def alone(self) -> AbstractContextManager[None]:
        """Raises UsageError while another process has this."""
        return files.locked(self._root)

    def written(self) -> tuple[Written, ...]:
        manifest = FILE.read(self.files, _refuse)
        return manifest.files if manifest else ()

    def read(self, path: str) -> str | None:
        """The file's text; None where there is none. A symlink is somebody's own way to keep it: ConfigError."""
        try:
            opened = self.files.itself(path, LIMIT_BYTES)
            if opened.facts.kind is not Kind.FILE:
                raise ConfigError(f"{path} is a {opened.facts.kind.value}, needed is a file", f"ls -l {path}")
            return opened.content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            symlink = isinstance(error, OSError) and error.errno == errno.ELOOP
            why = "it is a symlink, and needed is the file itself" if symlink else str(error)
            raise ConfigError(f"{path} can't be read: {why}", f"ls -l {path}") from None

    def write(self, path: str, text: str, mode: int, *, own: bool = False) -> None:
        """Write a file. It keeps the mode that it has, unless `mode` keeps others from reading it.

        `own`: nothing of a person's can be in it, so it is removed in the end.
        """
        self.record(path, text, own=own)
        with files.usage_error(f"{path} can't be written"):
            if (now := self.read(path)) is not None and mode & 0o077:
                mode = self.files.lstat(path).permissions
            if now != text:
                files.write(self._root / path.lstrip("/"), text, mode, durable=True)

    def record(self, path: str, text: str, *, own: bool = False) -> None:
        """Keep that this file is about to be written, with this text."""
        entries = self.written()
        others = [entry for entry in entries if entry.path != path]
        old = [entry for entry in entries if entry.path == path]
        before = now = self.read(path)
        if own:
            before = None
        elif old and (now is None or now == old[0].before or not old[0].is_edited(now)):
            before = old[0].before
        self._save((*others, Written(path, before, _digest(text), replaced_sha256=_digest(now))))

    def take_back(self) -> Iterator[str]:
        """Take back each file, with a line on what was done; the manifest goes last."""
        for file in reversed(self.written()):
            with files.usage_error(f"{file.path} can't be changed"):
                yield self._take_back(file)
        with files.usage_error(f"{FILE.path} can't be removed"):
            files.remove(self._root / FILE.path.lstrip("/"))

    def _take_back(self, file: Written) -> str:
        now, path = self.read(file.path), self._root / file.path.lstrip("/")
        if now is None or now == file.before:
            return f"{file.path} {'is gone' if now is None else 'is as it was before'}"
        if file.is_edited(now):
            return f"left {file.path}: it was changed since"
        if file.before is None or not file.before.strip():
            files.remove(path)
            if path.parent.name.endswith(".service.d"):
                with suppress(OSError):  # others are in it
                    path.parent.rmdir()
            return f"removed {file.path}"
        files.write(path, file.before, self.files.lstat(file.path).permissions, durable=True)
        return f"restored {file.path}"

    def _save(self, entries: tuple[Written, ...]) -> None:
        with files.usage_error(f"{FILE.path} can't be written"):
            files.write(self._root / FILE.path.lstrip("/"), FILE.encode(Manifest(entries)), FILE.mode, durable=True)


def _digest(text: str | None) -> str:
    return "" if text is None else sha256(text.encode()).hexdigest()


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason, f"look at it, then: sudo rm {FILE.path}")
