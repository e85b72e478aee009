"""The engine's log line by line: split from the stream, prepared for the journal. Pure."""

import re
from collections.abc import Callable, Iterator

from sparkd.base.lib.text import counted, printable

LINE_LIMIT_BYTES = 16_384
"""Longer lines are cut and marked; journald cuts at 48 KiB (LineMax=)."""

PROCESS_PREFIX = r"(?:\([A-Za-z][\w:.-]{0,63} pid=[0-9]{1,10}(?:, ip=[\w.:%-]{1,64})?\) ?)"
"""vLLM's prefix of the process; under Ray, one for Ray's process and one for vLLM's."""

_NEWLINE, _LINE_BREAK = re.compile(rb"(\n)"), re.compile(rb"([\r\n]+)")
_ONLY_PREFIX = re.compile(PROCESS_PREFIX.encode())
_LEVEL = re.compile(rf"^{PROCESS_PREFIX}{{0,4}}(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 3}
_PROGRESS_BAR = re.compile(r"\d%(?: Completed)? ?\|[^\[|]{0,200}(?:\|[^\[|]{0,200})?\[\d\d:\d\d")
_COMPLETE = re.compile(r"\b100%")
_REQUEST_LINE = re.compile(
    rf"^{PROCESS_PREFIX}{{0,2}}(?:"
    r"INFO: +(?:\S{1,64}|\('[^']{1,64}', \d{1,5}\)) - \"(?:[A-Z]{1,10}|WebSocket) "
    r"|INFO: +connection (?:open|closed|rejected \(\d{3} [A-Za-z -]{1,40}\))$"
    r"|WARNING: +(?:Invalid HTTP request|Unsupported upgrade request|No supported WebSocket library)\b)"
)
"""What uvicorn writes for each request, also for one that it refuses."""
_OF_API_SERVER = re.compile(r"\(apiserver", re.IGNORECASE)
"""Begins each line of vLLM's server: a request for a model of another name, or one that is too long, makes up to 40."""
REQUEST_LINES, REQUEST_LINES_PER_SECOND = 2000, 10.0
"""How many of these pass at once, and then each second. A client without a key could push the lines of all other units
out of the journal; a DGX Spark answers fewer requests than that."""
USUAL_LENGTH = 256
"""Characters of a line that counts once: a path or a model's name may have 16,000."""
NOTE_SECONDS = 60.0
"""Pause between two notes of how many were left out."""


class LineSplitter:
    """Lines of one stream. During the load a carriage return ends a line too: tqdm redraws with it."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._cut_bytes = 0

    def feed(self, frame: bytes, *, serving: bool = False) -> Iterator[str]:
        """The lines that this frame ends.

        While `serving` a newline alone ends one: vLLM writes its prefix after nothing else then, and a carriage return
        may be a client's.
        """
        end = len(frame) - 1
        if frame.find(b"\n") == end and 0 < end <= LINE_LIMIT_BYTES and b"\r" not in frame and not self._pending:
            # Most of docker's frames are one whole line.
            yield _decode(frame[:end])
            return
        *whole, rest = (_NEWLINE if serving else _LINE_BREAK).split(frame)
        for piece, line_end in zip(whole[::2], whole[1::2], strict=True):
            self._grow(piece)
            if not line_end.strip(b"\r") and _ONLY_PREFIX.fullmatch(self._pending):
                continue  # tqdm returns to the line's beginning, and vLLM has written its prefix there
            if self._pending.endswith(b"\r"):  # vLLM ends the lines of one message with CR LF
                del self._pending[-1:]
            yield from self.flush()
        self._grow(rest)

    def flush(self) -> Iterator[str]:
        """The rest of the stream, without a line end."""
        if self._pending:
            text = _decode(self._pending, self._cut_bytes)
            self._pending.clear()
            self._cut_bytes = 0
            yield text

    def _grow(self, piece: bytes) -> None:
        room = LINE_LIMIT_BYTES - len(self._pending)
        self._pending += piece[:room]
        self._cut_bytes += max(0, len(piece) - room)


def _decode(line: bytes | bytearray, cut_bytes: int = 0) -> str:
    """Printable text, cut once more: an escape has up to four times the bytes, and what is no UTF-8 three times.

    The mark at its end counts the `cut_bytes` that were cut before, and those cut here, as escaped.
    """
    text = printable(line.decode("utf-8", "replace"))
    if len(text) > LINE_LIMIT_BYTES // 4:  # UTF-8 has at most four bytes a character: most lines need no encoding
        encoded = text.encode()
        text = encoded[:LINE_LIMIT_BYTES].decode("utf-8", "ignore")
        cut_bytes += max(0, len(encoded) - LINE_LIMIT_BYTES)
    return f"{text} ... (+{cut_bytes} bytes)" if cut_bytes else text


class LogForwarder:
    """Turns lines into (priority, text) for the journal: redacted, without sparkd's own polls.

    Passes one line of a progress bar a second, and REQUEST_LINES of requests. Only one thread may use it.
    """

    def __init__(self, redact: Callable[[str], str], own_address: str) -> None:
        """sparkd polls the engine from and on `own_address`."""
        self._redact = redact
        self._own_poll = re.compile(
            rf"^{PROCESS_PREFIX}{{0,2}}INFO: +{re.escape(own_address)}:\d+ - "
            r'"GET /(?:health|metrics|v1/models) HTTP/1\.1" 200 OK$'
        )
        self._held_bar: str | None = None
        self._bar_at = self._noted_at = float("-inf")
        self._allowed_lines, self._refilled_at, self._left_out = float(REQUEST_LINES), 0.0, 0

    def forward(self, line: str, now: float, *, serving: bool = False) -> Iterator[tuple[int, str]]:
        """The journal's lines for one log line. `now`: monotonic seconds. `serving`: clients may cause lines."""
        if self._own_poll.match(line):
            return
        if _REQUEST_LINE.match(line) or (serving and _OF_API_SERVER.match(line)):
            if not self._take_allowance(line, now):
                self._left_out += 1
                return
            if now - self._noted_at >= NOTE_SECONDS:
                self._noted_at = now
                yield from self._note_left_out()
        if "%" in line and _PROGRESS_BAR.search(line):
            if now - self._bar_at < 1.0 and not _COMPLETE.search(line):
                self._held_bar = line
                return
            self._held_bar = None
            self._bar_at = now
        elif self._held_bar is not None:
            yield from self.flush()
        level = _LEVEL.match(line)
        yield _PRIORITY[level[1]] if level else 6, f"engine| {self._redact(line)}"

    def _take_allowance(self, line: str, now: float) -> bool:
        """Whether the line of a request may pass now: a token bucket."""
        refill = max(0.0, now - self._refilled_at) * REQUEST_LINES_PER_SECOND
        self._allowed_lines, self._refilled_at = min(float(REQUEST_LINES), self._allowed_lines + refill), now
        if self._allowed_lines < 1:
            return False
        self._allowed_lines -= 1 + len(line) // USUAL_LENGTH
        return True

    def _note_left_out(self) -> Iterator[tuple[int, str]]:
        if self._left_out:
            yield 5, f"engine| left out here: {counted(self._left_out, 'line')} of requests; docker has the latest"
            self._left_out = 0

    def flush(self) -> Iterator[tuple[int, str]]:
        """The last held line of a progress bar, and how many lines of requests were left out."""
        yield from self._note_left_out()
        if self._held_bar is not None:
            yield 6, f"engine| {self._redact(self._held_bar)}"
            self._held_bar = None
