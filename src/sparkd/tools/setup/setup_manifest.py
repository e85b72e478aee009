"""The files that `sparkd init` writes, and their removal by a manifest, which is on disk before each change."""

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
from sparkd.tools.node.command_lock import hold_command_lock, usage_error
from sparkd.tools.setup.unit_files import remove, write


class WrittenFile(Struct, frozen=True):
    """A file that `init` has written, or is about to write."""

    path: str
    before: str | None
    """Content before the first change; None: there was no file."""
    sha256: str
    """The digest of the new text."""
    replaced_sha256: str = ""
    """The digest of the text before it, which the file may still have after a power cut."""

    def is_edited(self, text: str) -> bool:
        """Whether the file's text is a person's, and neither the new one nor the one before it."""
        return _hash(text) not in (self.sha256, self.replaced_sha256)


class Manifest(Struct, frozen=True):
    """The record of all changes."""

    files: tuple[WrittenFile, ...]


FILE = StateFile(Manifest, "setup.json")


class Setup:
    """Files below `root`, each in the manifest before it changes.

    Raises UsageError where this user may not change them, ConfigError for unfit files.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self.files = root, Files(str(root))

    def hold_lock(self) -> AbstractContextManager[None]:
        """The lock for changes. Raises UsageError while another process has it."""
        return hold_command_lock(self._root)

    def written(self) -> tuple[WrittenFile, ...]:
        """The entries of the manifest, in the order of their changes."""
        manifest = FILE.read(self.files, _refuse)
        return manifest.files if manifest else ()

    def read(self, path: str) -> str | None:
        """The file's text; None where there is none. Raises ConfigError for anything else, also for a symlink."""
        try:
            opened = self.files.itself(path, 1 << 20)
            if opened.facts.kind is not Kind.FILE:
                raise ConfigError(f"{path} is a {opened.facts.kind.value}, needed is a file", f"ls -l {path}")
            return opened.content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            is_symlink = isinstance(error, OSError) and error.errno == errno.ELOOP
            reason = "it is a symlink, and needed is the file itself" if is_symlink else str(error)
            raise ConfigError(f"{path} can't be read: {reason}", f"ls -l {path}") from None

    def write(self, path: str, text: str, mode: int, *, own: bool = False) -> None:
        """Write a file. An existing one keeps its mode, unless `mode` denies access to group and others.

        `own`: as in `record`.
        """
        self.record(path, text, own=own)
        with usage_error(f"{path} can't be written"):
            if (current_text := self.read(path)) is not None and mode & 0o077:
                mode = self.files.lstat(path).permissions
            if current_text != text:
                files.write(self._root / path.lstrip("/"), text, mode, durable=True)

    def record(self, path: str, text: str, *, own: bool = False) -> None:
        """Record in the manifest that this file is about to be written, with this text.

        `own`: it has nothing of a person's, so that `take_back` removes it instead of restoring an earlier text.
        """
        entries = self.written()
        others = [entry for entry in entries if entry.path != path]
        previous = next((entry for entry in entries if entry.path == path), None)
        original = current_text = self.read(path)
        if own:
            original = None
        elif previous and (current_text in (None, previous.before) or not previous.is_edited(current_text)):
            original = previous.before  # what is there now is sparkd's, or what was there before sparkd
        self._save((*others, WrittenFile(path, original, _hash(text), replaced_sha256=_hash(current_text))))

    def take_back(self) -> Iterator[str]:
        """Remove or restore each file, and yield a line on it; remove the manifest at the end. Raises UsageError."""
        texts = [(file, self.read(file.path)) for file in reversed(self.written())]  # all, before any change
        for file, text in texts:
            with usage_error(f"{file.path} can't be changed"):
                yield self._take_back(file, text)
        remove(self._root, FILE.path)

    def _take_back(self, file: WrittenFile, current_text: str | None) -> str:
        path = self._root / file.path.lstrip("/")
        if current_text is None or current_text == file.before:
            return f"{file.path} {'is gone' if current_text is None else 'is as it was before'}"
        if file.is_edited(current_text):
            return f"left {file.path}: it was changed since"
        if file.before is None or not file.before.strip():
            files.remove(path)
            if path.parent.name.endswith(".service.d"):
                with suppress(OSError):  # it has other files
                    path.parent.rmdir()
            return f"removed {file.path}"
        files.write(path, file.before, self.files.lstat(file.path).permissions, durable=True)
        return f"restored {file.path}"

    def _save(self, entries: tuple[WrittenFile, ...]) -> None:
        write(self._root, FILE.path, FILE.encode(Manifest(entries)), FILE.mode)


def _hash(text: str | None) -> str:
    return "" if text is None else sha256(text.encode()).hexdigest()


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason, f"look at it, then: sudo rm {FILE.path}")
