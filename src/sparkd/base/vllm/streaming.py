"""A completion that comes token by token: the events of its stream, with the time of each."""

import time
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from sparkd.base.lib import prepared
from sparkd.base.lib.http_client import HttpClient
from sparkd.base.lib.text import sanitize

EVENT_BYTES = 64 << 10
"""Limit of any event, and of the text that is kept for an error."""
EVENTS_PER_TOKEN = 2
"""Limit of their number. The engine sends one for each step, which makes one token or, with a drafter, several."""
TOKEN_BYTES = 1 << 10
"""Limit of an event with a token; one of vLLM 0.32 has some 250 bytes."""


class StreamError(Exception):
    """The engine refused the request, broke the stream off, or sent something else than a stream of completions."""


class Streamed(Struct, frozen=True):
    """A whole answer. Times are seconds of the monotonic clock."""

    begun: float
    arrivals: tuple[float, ...]
    """When each event with a part of the answer came; at least one."""
    ended: float
    prompt_tokens: int
    tokens: int
    """Tokens of the answer. The server counts both."""


class _Usage(Struct):
    prompt_tokens: Annotated[int, Meta(ge=0, lt=1 << 31)]
    completion_tokens: Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Event(Struct):
    choices: list[object] = []
    usage: _Usage | None = None
    error: object = None


class _Events:
    """Reads the events of a stream that comes in pieces of any size. Raises StreamError."""

    def __init__(self, most_arrivals: int) -> None:
        self.arrivals: list[float] = []
        self.usage: _Usage | None = None
        self.begin = b""
        """The first bytes of the stream, for the text of an error."""
        self._rest = b""
        self._most_arrivals = most_arrivals
        self._decode = msgspec.json.Decoder(prepared(_Event)).decode

    def feed(self, piece: bytes) -> None:
        now = time.monotonic()
        if len(self.begin) < EVENT_BYTES:
            self.begin += piece[:EVENT_BYTES]
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        if len(self._rest) > EVENT_BYTES:
            raise StreamError(f"an event of over {EVENT_BYTES} bytes")
        for event in events:
            if event.startswith(b"data: {"):
                self._add(event[6:], now)

    def _add(self, event: bytes, now: float) -> None:
        try:
            part = self._decode(event)
        except (msgspec.MsgspecError, RecursionError):
            raise StreamError(f"no event of a completion: {excerpt(event)}") from None
        if part.error is not None:
            raise StreamError(f"the engine broke off: {excerpt(event)}")
        if part.choices:
            self.arrivals.append(now)
            if len(self.arrivals) > self._most_arrivals:
                raise StreamError(f"more than {self._most_arrivals} parts of one answer")
        self.usage = part.usage or self.usage


async def stream_completion(http: HttpClient, model: str, prompt: str, tokens: int, seconds: float) -> Streamed:
    """Request a completion of exactly `tokens` tokens, also where the model would end it earlier.

    Raises HttpError, StreamError.
    """
    body: Mapping[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = _Events(EVENTS_PER_TOKEN * (tokens + 1))
    begun = time.monotonic()
    limit_bytes = EVENT_BYTES + TOKEN_BYTES * EVENTS_PER_TOKEN * tokens
    answer = await http.request("/v1/completions", seconds, received=events.feed, json=body, limit_bytes=limit_bytes)
    ended = time.monotonic()
    if answer.status != 200:
        raise StreamError(f"HTTP {answer.status} {excerpt(events.begin)}".strip())
    if events.usage is None or not events.arrivals:
        raise StreamError("the stream ended early, without the count of its tokens")
    return Streamed(begun, tuple(events.arrivals), ended, events.usage.prompt_tokens, events.usage.completion_tokens)


def excerpt(body: bytes) -> str:
    """The beginning, for the text of an error."""
    return sanitize(body.decode("utf-8", "replace"))
