"""The archive of `sparkd capture`: one place that every text passes."""

from __future__ import annotations

import io
import json
import tarfile
from contextlib import suppress
from datetime import datetime

from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import parse_json

MOST_BYTES = 19 << 20
"""Of the archive: forums and mail take 20 MB."""


class Archive:
    """A tar file whose every text passes `redact`, JSON as a document. What would make it too long is left out."""

    def __init__(self, name: str, at: datetime, redact: Redaction) -> None:
        self._name, self._at, self._redact = name, at.timestamp(), redact
        self._out = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._out, mode="w:gz", compresslevel=6)  # noqa: SIM115 - until `close`
        self.left_out = 0

    def add(self, path: str, content: bytes | str | None, target: str = "", *, executable: bool = False) -> None:
        """None: a folder, or a symlink to `target`. What is not UTF-8 is left empty."""
        if self._out.getbuffer().nbytes > MOST_BYTES:
            self.left_out += 1
            return
        member = tarfile.TarInfo(f"{self._name}/{self._redact(path)}")
        member.mtime, member.mode = int(self._at), 0o700 if content is None or executable else 0o600
        if target:
            member.type, member.linkname = tarfile.SYMTYPE, self._redact(target)
        elif content is None:
            member.type = tarfile.DIRTYPE
        data = self._clean(path, content or b"")
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def _clean(self, path: str, content: bytes | str) -> bytes:
        if path.endswith(".json"):
            with suppress(ValueError, RecursionError):
                document = self._redact.document(parse_json(content))
                return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8", "backslashreplace")
        with suppress(UnicodeDecodeError):
            text = content if isinstance(content, str) else content.decode()
            return self._redact(text).encode("utf-8", "backslashreplace")
        return b""

    def close(self) -> bytes:
        self._tar.close()
        return self._out.getvalue()
