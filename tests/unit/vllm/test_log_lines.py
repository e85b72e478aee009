"""The engine's log lines: split from the stream, and prepared for the journal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.base.lib.redactor import Redactor
from sparkd.base.vllm.log_lines import (
    LINE_LIMIT_BYTES,
    NOTE_SECONDS,
    REQUEST_LINES,
    REQUEST_LINES_PER_SECOND,
    USUAL_LENGTH,
    LineSplitter,
    LogForwarder,
)


def split(*pieces: bytes, serving: bool = False) -> list[str]:
    splitter = LineSplitter()
    lines = [line for piece in pieces for line in splitter.feed(piece, serving=serving)]
    return lines + list(splitter.flush())


def test_lines_end_at_newline_and_carriage_return_and_join_over_pieces() -> None:
    assert split(b"one\ntw", b"o\rthree\r\n\n", b"four") == ["one", "two", "three", "four"]


def test_a_prefix_stays_before_the_bar_that_is_drawn_after_a_return() -> None:
    """As vLLM 0.26 writes it: a prefix, a return, and tqdm's line, drawn again and again."""
    bar = b"(EngineCore pid=64) \rshards:  25%|x\rshards:  50%|x\n(EngineCore pid=64) \nnext\n"
    lines = ["(EngineCore pid=64) shards:  25%|x", "shards:  50%|x", "(EngineCore pid=64) ", "next"]
    assert split(bar) == lines
    assert split(*(bytes([byte]) for byte in bar)) == lines


def test_the_lines_of_one_message_have_no_return_at_their_ends() -> None:
    """vLLM joins them with CR LF; a return within a line is a client's text."""
    assert split(b"one\r\ntwo\r", b"\nth\rree\n", serving=True) == ["one", "two", "th\\rree"]


@given(st.lists(st.binary(max_size=64)))
def test_pieces_make_the_same_lines_as_the_whole(pieces: list[bytes]) -> None:
    assert split(*pieces) == split(b"".join(pieces))


@given(st.binary(max_size=256))
def test_whatever_the_engine_writes_is_printable(data: bytes) -> None:
    assert all(line.isprintable() for line in split(data))


def test_colours_go_and_other_control_characters_are_written_out() -> None:
    assert split(b"\x1b[31mred\x1b[0m \x1b]0;title\x07bell\x07 \x9b2J\n") == ["red bell\\x07 �2J"]  # words: keep
    assert split("right‮left\n".encode()) == ["right\\u202eleft"]


def test_a_long_line_is_cut_and_marked() -> None:
    (line,) = split(b"x" * (LINE_LIMIT_BYTES + 5), b"y" * 10, b"\n")
    assert line.startswith("xxx")
    assert line.endswith(" ... (+15 bytes)")


@pytest.mark.parametrize(
    ("log", "cut_bytes"),
    [
        (b"\0" * (LINE_LIMIT_BYTES // 4), 0),
        (b"\0" * 16_000, 47_616),  # 64,000 bytes of escapes
        (b"\0" * 17_000, 616 + 3 * LINE_LIMIT_BYTES),
        (b"\xff" * LINE_LIMIT_BYTES, 2 * LINE_LIMIT_BYTES),  # each becomes U+FFFD, three bytes
        ("é".encode() * (LINE_LIMIT_BYTES // 2), 0),
    ],
)
def test_a_line_that_grows_in_print_is_cut_by_its_bytes_and_marked(log: bytes, cut_bytes: int) -> None:
    mark = f" ... (+{cut_bytes} bytes)" if cut_bytes else ""
    for pieces in ((log + b"\n",), (log, b"\n")):
        (line,) = split(*pieces)
        assert line.endswith(mark)
        assert LINE_LIMIT_BYTES - 3 < len(line.removesuffix(mark).encode()) <= LINE_LIMIT_BYTES


def forwarded(*lines: tuple[float, str], serving: bool = False) -> list[tuple[int, str]]:
    forwarder = LogForwarder(Redactor(("s3cret-value",)), "127.0.0.1")
    entries = [entry for now, line in lines for entry in forwarder.forward(line, now, serving=serving)]
    return entries + list(forwarder.flush())


def test_priority_follows_the_engines_level_and_cannot_be_forged() -> None:
    assert forwarded(
        (0, "(EngineCore pid=9) ERROR 11-21 01:49:44 [core.py:1] bad"),
        (0, "(APIServer pid=9) WARNING 11-21 01:49:44 [x.py:1] hm"),
        (0, "(RayWorkerProc pid=96, ip=10.77.0.2) (Worker_TP1 pid=96) ERROR 11-21 01:49:44 [x.py:1] no"),
        (0, "<0>panic"),
    ) == [
        (3, "engine| (EngineCore pid=9) ERROR 11-21 01:49:44 [core.py:1] bad"),
        (4, "engine| (APIServer pid=9) WARNING 11-21 01:49:44 [x.py:1] hm"),
        (3, "engine| (RayWorkerProc pid=96, ip=10.77.0.2) (Worker_TP1 pid=96) ERROR 11-21 01:49:44 [x.py:1] no"),
        (6, "engine| <0>panic"),
    ]


def bar(percent: int) -> str:
    return f"Loading safetensors checkpoint shards: {percent:3}% Completed | {percent}/100 [00:01<00:01,  1.0it/s]"


def test_a_progress_bar_is_folded_to_a_line_a_second_and_its_end_is_kept() -> None:
    entries = forwarded((0.0, bar(1)), (0.1, bar(2)), (0.9, bar(3)), (1.1, bar(4)), (1.2, bar(5)), (1.3, bar(100)))
    assert [text for _, text in entries] == [f"engine| {bar(p)}" for p in (1, 4, 100)]


def test_the_last_state_of_a_bar_comes_before_the_next_line() -> None:
    entries = forwarded((0.0, bar(1)), (0.1, bar(2)), (0.2, "ValueError: no"))
    assert [text for _, text in entries] == [f"engine| {bar(1)}", f"engine| {bar(2)}", "engine| ValueError: no"]


def test_secrets_never_pass() -> None:
    (line,) = forwarded(
        (0.0, "args: {'api_key': 'hunter22', 'x': 's3cret-value', 'max_tokens': 2000} Bearer hf_abcdefghijklmnop1234")
    )
    assert line[1] == "engine| args: {'api_key': '***', 'x': '***', 'max_tokens': 2000} Bearer ***"


@pytest.mark.parametrize(
    "line",
    [
        '(APIServer pid=7) INFO:     10.0.0.9:33220 - "POST /v1/completions HTTP/1.1" 401 Unauthorized',
        "WARNING:  Invalid HTTP request received.",
        'INFO:     10.0.0.9:33220 - "WebSocket /x" 403',
        "INFO:     ('10.0.0.9', 33220) - \"WebSocket /x\" [accepted]",
        "(APIServer pid=7) INFO:     connection rejected (403 Forbidden)",
        "INFO:     connection closed",
        "WARNING:  Unsupported upgrade request.",
        "(APIServer pid=7) ERROR 11-21 01:49:44 [serving.py:1] Error with model error=ErrorInfo(message='No `x`.')",
        "(ApiServer_0 pid=7) ERROR:    Exception in ASGI application",
    ],
)
def test_requests_without_end_leave_the_journal_to_others(line: str) -> None:
    """Ten minutes of 100 requests a second, an error among them, then an hour with one a minute."""
    flood = [(second / 100, line) for second in range(60_000)]
    error, calm = (600.0, "ERROR 11-21 01:49:44 [x.py:1] no"), [(660.0 + 60 * minute, line) for minute in range(60)]
    texts = [text for _, text in forwarded(*flood, error, *calm, serving=True)]
    notes = [text for text in texts if text.endswith(" of requests; docker has the latest")]
    assert texts.count(f"engine| {line}") == pytest.approx(REQUEST_LINES + 600 * REQUEST_LINES_PER_SECOND + 60, abs=2)
    assert sum(int(text.split()[4].replace(",", "")) for text in notes) + texts.count(f"engine| {line}") == len(
        flood
    ) + len(calm)
    assert len(notes) <= 600 / NOTE_SECONDS + 3
    assert f"engine| {error[1]}" in texts


def test_a_long_line_of_a_request_counts_as_the_lines_that_it_takes_the_room_of() -> None:
    line = f'INFO:     10.0.0.9:33220 - "GET /{"x" * 16_000} HTTP/1.1" 404 Not Found'
    passed = [text for _, text in forwarded(*((0.0, line) for _ in range(1000))) if text.startswith("engine| INFO")]
    assert sum(map(len, passed)) <= USUAL_LENGTH * REQUEST_LINES + len(line)


def test_a_server_that_loads_writes_as_much_as_it_wants() -> None:
    lines = [(0.0, f"(APIServer pid=7) INFO 11-21 01:49:44 [x.py:1] {number}") for number in range(2 * REQUEST_LINES)]
    assert len(forwarded(*lines)) == len(lines)


def test_sparkds_own_polls_are_not_echoed_but_those_of_others_are() -> None:
    own = 'INFO:     127.0.0.1:33220 - "GET /health HTTP/1.1" 200 OK'
    other = 'INFO:     10.0.0.9:33220 - "GET /health HTTP/1.1" 200 OK'
    prefixed = f"(APIServer pid=7) {own}"
    failed = 'INFO:     127.0.0.1:33220 - "GET /health HTTP/1.1" 503 Service Unavailable'
    assert [text for _, text in forwarded((0, own), (0, prefixed), (0, other), (0, failed))] == [
        f"engine| {other}",
        f"engine| {failed}",
    ]
