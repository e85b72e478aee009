"""A state file: one JSON object, read as untrusted input."""

import errno
import json
import os
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from sparkd.base.host.files import Files
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.text import parse_json

FOLDER = "/var/lib/sparkd"
STACKS = f"{FOLDER}/stacks"
"""Stacks of ranks that hung, a file each."""
PRIVATE, PUBLIC = 0o600, 0o644
"""Private: may hold values that the configuration keeps from other users, such as variables of the engine."""
VERSION = 1
LIMIT_BYTES = 16 << 20
_NEVER_WRITTEN = (errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EFBIG)
"""Errors of a symlink, a socket, a device, and of too large a file. sparkd writes no such file, so it replaces them."""

Content = TypeVar("Content", bound=msgspec.Struct)
Report = Callable[[str], None]
"""Takes one line about a file that exists and is unusable."""


class FolderError(OSError):
    """A folder has the path of a state file. It may hold anything, so that sparkd leaves it alone."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is a folder, and has to be a file or nothing")
        self.hint = f"sudo mv {path} {path}.folder"


def ignore_report(_: str) -> None:
    """Report nothing, for callers that treat an unusable file as a missing one."""


class Codec(msgspec.Struct, Generic[Content], frozen=True):
    """One JSON object with a schema number, as a file or an answer has it."""

    kind: type[Content]

    def decode(self, content: bytes) -> Content:
        """The content of a document's bytes. Raises ValueError."""
        document = parse_json(content)
        if not isinstance(document, dict) or document.get("schema") != VERSION:
            raise ValueError(f"it is no object of schema {VERSION}")
        try:
            return self.convert(document)
        except RecursionError:
            raise ValueError("it is nested too deep") from None

    def convert(self, fields: dict[str, object]) -> Content:
        """The content of JSON fields. Raises ValueError."""
        return msgspec.convert(fields, prepared(self.kind), dec_hook=_convert_model)

    def encode(self, value: Content) -> str:
        fields: dict[str, object] = msgspec.to_builtins(
            value, enc_hook=lambda model: model.model_dump(mode="json", by_alias=True)
        )
        return json.dumps({"schema": VERSION, **fields}, indent=1) + "\n"


class StateFile(Codec[Content], Generic[Content], frozen=True):
    name: str
    mode: int = PRIVATE
    folder: str = FOLDER
    notice: str = ""
    """A path in /run that each exchange writes, unless /run is full. A process that waits for a change reads that path,
    and no disk.
    """

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    def load(self, files: Files, report: Report) -> Content | None:
        """The content; None where there is no file, or one that sparkd did not write, which is reported.

        Follows no symlink. Raises OSError, with a text for people, where the content is unknown: it must not be written
        over. Raises UsageError for a user who may not read the file.
        """
        try:
            return self.decode(files.itself(self.path, LIMIT_BYTES).content)
        except FileNotFoundError:
            return None
        except OSError as error:
            if isinstance(error, PermissionError) and os.geteuid():
                raise UsageError(f"{self.path} may be read by root alone", AS_ROOT) from None
            if isinstance(error, IsADirectoryError):
                raise FolderError(self.path) from None
            reason = f"{self.path} can't be read: {error.strerror or error}"
            if error.errno not in _NEVER_WRITTEN:
                raise OSError(reason) from None
        except ValueError as error:
            reason = f"{self.path} can't be read: {error}"
        report(reason)
        return None

    def read(self, files: Files, report: Report = ignore_report) -> Content | None:
        """Load, but report an OSError instead of raising it: only for callers that do not write the file afterwards."""
        try:
            return self.load(files, report)
        except OSError as error:
            report(str(error))
            return None


def _convert_model(kind: type, fields: object) -> object:
    """Convert a recipe or a section of the settings; other JSON stays. Pydantic's own errors might quote secrets."""
    from pydantic import BaseModel, ValidationError

    if not issubclass(kind, BaseModel):
        return fields
    try:
        return kind.model_validate(fields)
    except ValidationError:
        raise ValueError(f"this version of sparkd does not accept it as {kind.__name__}") from None
