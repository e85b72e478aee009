"""A streamed completion: the server's counts, the time of each part, and an error for all that is no such stream."""

import asyncio
import json

import pytest
from tests.unit.engine_server import engine
from tests.unit.stream_server import TOKEN, streaming

from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.streaming import EVENT_BYTES, Streamed, StreamError

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def streamed(body: bytes, status: int = 200) -> Streamed:
    with engine(lambda *_: (status, body)) as port:
        return asyncio.run(Endpoint("127.0.0.1", port, "tiny").stream("hello", 3, 5))


LAST = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


def test_tokens_are_the_servers_count_and_not_the_number_of_events() -> None:
    answer = streamed(event(TOKEN) * 2 + LAST)
    assert answer.tokens == 3
    assert answer.prompt_tokens == 7
    first, second = answer.arrivals
    assert answer.begun <= first <= second <= answer.ended


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (400, b'{"error": {"message": "too long"}}', "HTTP 400 .*too long"),
        (500, b"\x1b[31m\xff" * 1000, r"HTTP 500 \\x1b"),
        (200, b"", "ended early"),
        (200, event(TOKEN) * 3, "ended early"),
        (200, LAST, "ended early"),
        (200, b"data: {\n\n", "no event of a completion"),
        (200, event({"choices": 3}), "no event of a completion"),
        (200, event({"choices": [], "usage": {"prompt_tokens": "x"}}), "no event of a completion"),
        (200, event({"choices": [], "usage": {**USAGE, "prompt_tokens": -(10**15)}}), "no event of a completion"),
        (200, b'data: {"choices": ' + b"[" * 20_000 + b"\n\n", "no event of a completion"),
        (200, event(TOKEN) + event({"error": {"message": "EngineDeadError"}}), "broke off: .*EngineDeadError"),
        (200, event(TOKEN) * 99 + LAST, "more than 8 parts"),
        (200, b"data: {" + b"x" * (EVENT_BYTES + 1), "an event of over"),
        (200, b"<html>" + b"\n\n" * 9, "ended early"),
    ],
)
def test_what_is_no_such_stream_is_an_error_in_few_words(status: int, body: bytes, fault: str) -> None:
    with pytest.raises(StreamError, match=fault) as raised:
        streamed(body, status)
    assert len(str(raised.value)) < 300
    assert str(raised.value).isprintable()


def test_times_are_those_of_the_tokens() -> None:
    with streaming(0.2, 0.05) as port:
        answer = asyncio.run(Endpoint("127.0.0.1", port, "tiny").stream("a b c", 5, 5))
    assert len(answer.arrivals) == 5
    assert 0.15 < answer.arrivals[0] - answer.begun < 1, "not that of the connection or of the whole answer"
    assert 0.1 < answer.arrivals[-1] - answer.arrivals[0] < 1
