"""The archive of `sparkd capture`: a tar file in memory, of which every text is redacted."""

import io
import json
import tarfile
from contextlib import suppress
from datetime import datetime

from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import parse_json

MOST_BYTES = 19 << 20
"""The archive's limit: forums and mail take 20 MB."""


class Archive:
    """A tar file. Every text in it is redacted, JSON as a document. Once it is too long, members are left out."""

    def __init__(self, name: str, at: datetime, redact: Redaction) -> None:
        """`name`: of the folder that all members are in; `at`: their time of change."""
        self._name, self._at, self._redact = name, at.timestamp(), redact
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w:gz", compresslevel=6)  # noqa: SIM115 - until `close`
        self.left_out = 0
        """Members that did not fit."""

    def add(self, path: str, content: bytes | str | None, target: str = "", *, executable: bool = False) -> None:
        """Add a file, or with None as `content` a folder or a symlink to `target`. A file that is no UTF-8 is empty."""
        if self._buffer.getbuffer().nbytes > MOST_BYTES:
            self.left_out += 1
            return
        member = tarfile.TarInfo(f"{self._name}/{self._redact(path)}")
        member.mtime, member.mode = int(self._at), 0o700 if content is None or executable else 0o600
        if target:
            member.type, member.linkname = tarfile.SYMTYPE, self._redact(target)
        elif content is None:
            member.type = tarfile.DIRTYPE
        packed = self._redact_content(path, content or b"")
        member.size = len(packed)
        self._tar.addfile(member, io.BytesIO(packed))

    def _redact_content(self, path: str, content: bytes | str) -> bytes:
        """The content without secrets; empty where it is not UTF-8."""
        if path.endswith(".json"):
            with suppress(ValueError, RecursionError):
                document = self._redact.document(parse_json(content))
                return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
        with suppress(UnicodeDecodeError):
            text = content if isinstance(content, str) else content.decode()
            return self._redact(text).encode("utf-8", "backslashreplace")
        return b""

    def close(self) -> bytes:
        """The complete file."""
        self._tar.close()
        return self._buffer.getvalue()
