"""A streamed completion: the server's counts, the time of each part, and an error for all that is no such stream."""

import asyncio
import json

import pytest
from tests.unit.engine_server import engine
from tests.unit.stream_server import TOKEN, streaming

from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.counters import Drafts, parse_drafts
from sparkd.base.vllm.streaming import EVENT_BYTES, Streamed, StreamError

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
PAGE = b"""\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 81.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.1e+01
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.79e+09
"""


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def streamed(body: bytes, status: int = 200, tokens: int = 3) -> Streamed:
    with engine(lambda *_: (status, body)) as port:
        return asyncio.run(Endpoint("127.0.0.1", port, "tiny").stream("hello", tokens, 5))


LAST = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


def test_tokens_are_the_servers_count_and_not_the_number_of_events() -> None:
    found = streamed(event(TOKEN) * 2 + LAST)
    assert (found.tokens, found.prompt_tokens, len(found.arrivals)) == (3, 7, 2)
    assert found.begun <= found.arrivals[0] <= found.arrivals[1] <= found.ended


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
        found = asyncio.run(Endpoint("127.0.0.1", port, "tiny").stream("a b c", 5, 5))
    assert (found.prompt_tokens, found.tokens, len(found.arrivals)) == (3, 5, 5)
    first, rest = found.arrivals[0] - found.begun, found.arrivals[-1] - found.arrivals[0]
    assert 0.15 < first < 1, "not those of the connection or of the whole answer"
    assert 0.1 < rest < 1


def test_drafts_are_counted_by_position() -> None:
    assert parse_drafts(PAGE) == Drafts(100, (81, 51))
    assert parse_drafts(PAGE + PAGE) == Drafts(200, (162, 102))
    assert parse_drafts(b"vllm:num_requests_running 1.0\n") is None
    assert parse_drafts(PAGE.replace(b'position="1"', b'position="999"')) == Drafts(100, (81,))
