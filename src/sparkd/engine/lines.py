"""Bytes of a container's log to lines that are safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkd.lib.text import printable

LINE_LIMIT_BYTES = 16_384
"""Longer lines are cut and say so; journald itself cuts at 48 KiB (LineMax=)."""

WHOSE = r"(?:\(\S[^()]* pid=\d+(?:, ip=[^()\s]+)?\) ?)"
"""Whose line it is; under Ray, of which node's process, and then the process's own word for itself."""

_BREAK = re.compile(rb"[\r\n]+")


class LineSplitter:
    """Lines of one stream. A carriage return ends a line too: tqdm redraws with it."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> Iterator[str]:
        length = len(data) - 1
        if data.find(b"\n") == length and 0 < length <= LINE_LIMIT_BYTES and b"\r" not in data and not self._pending:
            # One whole line, as most of docker's frames are.
            yield printable(data[:length].decode("utf-8", "replace"))
            return
        *whole, rest = _BREAK.split(data)
        for piece in whole:
            self._grow(piece)
            if self._pending:
                yield self._take()
        self._grow(rest)

    def flush(self) -> Iterator[str]:
        """What the stream left without a line end."""
        if self._pending:
            yield self._take()

    def _grow(self, piece: bytes) -> None:
        room = LINE_LIMIT_BYTES - len(self._pending)
        self._pending += piece[:room]
        self._cut_bytes += max(0, len(piece) - room)

    def _take(self) -> str:
        text = printable(self._pending.decode("utf-8", "replace"))
        if self._cut_bytes:
            text += f" ... (+{self._cut_bytes} bytes)"
        self._pending.clear()
        self._cut_bytes = 0
        return text
