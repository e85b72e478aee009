"""A container's log as a stream: its frames, its end, and a docker that stops during it."""

import io
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.docker_server import STREAM, STREAM_END, chunk, dockerd, frame, json_response

from sparkd.base.lib.dockerd.reader import FRAME_LIMIT_BYTES, DockerError, follow_log, frames, since_of

ID = "ab" * 32
SENT = [(1, b"one\n"), (2, b"\xfftwo"), (1, b""), (2, b"x" * 20_000), (1, b"end\n")]


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))))
def test_frames_come_out_as_they_were_written(sent: list[tuple[int, bytes]]) -> None:
    raw = b"".join(frame(stream, data) for stream, data in sent)
    assert list(frames(io.BytesIO(raw).read)) == sent


def test_a_frame_cut_off_by_the_end_is_no_frame() -> None:
    raw = frame(1, b"whole") + frame(2, b"cut off")[:-1]
    assert list(frames(io.BytesIO(raw).read)) == [(1, b"whole")]


def test_a_frame_of_an_impossible_length_is_refused_at_once() -> None:
    header = bytes([1, 0, 0, 0]) + (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(DockerError):
        list(frames(io.BytesIO(header).read))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 4096, 1 << 20])
def test_a_log_is_read_to_its_end_in_chunks_of_any_size(size: int) -> None:
    raw = b"".join(frame(stream, data) for stream, data in SENT)
    requests = []

    def answer(request: str) -> Iterable[bytes]:
        requests.append(request)
        return (STREAM, *(chunk(raw[at : at + size]) for at in range(0, len(raw), size)), STREAM_END)

    with dockerd(answer) as path:
        assert list(follow_log(ID, "0", path)) == SENT
        assert list(follow_log(ID, since_of(b"2025-11-22T05:53:56.123456789+01:00 a line"), path)) == SENT
    assert requests[0] == f"GET /v1.44/containers/{ID}/logs?follow=1&stdout=1&stderr=1&tail=all&timestamps=1&since=0"
    assert requests[1].endswith("&since=1763787236.123456789")


@pytest.mark.parametrize("cut", [b"", b"8\r\n", b"8\r\nabc"], ids=["between chunks", "before a chunk", "within one"])
def test_a_broken_connection_is_an_error_and_no_end_of_the_log(cut: bytes) -> None:
    def answer(_request: str) -> Iterable[bytes]:
        yield STREAM + chunk(frame(1, b"a line\n")) + cut
        raise OSError  # wire.serving closes the connection

    with dockerd(answer) as path:
        log = follow_log(ID, "0", path)
        assert next(log) == (1, b"a line\n")
        with pytest.raises(DockerError, match="closed the connection"):
            next(log)


def test_a_container_that_is_gone_has_no_log(tmp_path: Path) -> None:
    gone = json_response({"message": "No such container"}, 404)
    with dockerd(lambda _: gone) as path, pytest.raises(DockerError, match=r"^HTTP 404$"):
        list(follow_log(ID, "0", path))
    with pytest.raises(DockerError, match="No such file"):
        list(follow_log(ID, "0", str(tmp_path / "none")))


def test_lines_arrive_as_they_are_written_and_a_pause_is_no_end() -> None:
    def answer(_request: str) -> Iterable[bytes]:
        yield STREAM + chunk(frame(1, b"first\n"))
        time.sleep(0.5)
        yield chunk(frame(2, b"second\n")) + STREAM_END

    began = time.monotonic()
    with dockerd(answer) as path:
        times = [time.monotonic() - began for _ in follow_log(ID, "0", path)]
    assert times[0] < 0.4 < times[1]


def test_a_newer_docker_is_followed_too() -> None:
    def answer(request: str) -> Iterable[bytes]:
        if request == "GET /version":
            return json_response({"ApiVersion": "1.60"})
        if "/v1.60/" in request:
            return (STREAM, chunk(frame(1, b"a\n")), STREAM_END)
        return json_response({"message": "client version 1.44 is too old. Minimum supported API version is 1.52"}, 400)

    with dockerd(answer) as path:
        assert list(follow_log(ID, "0", path)) == [(1, b"a\n")]


@pytest.mark.parametrize(
    "piece", [b"", b"a line", b"2026-11-27T01:02:03Z a line", b"\xff", b"2026-11-27T01:02:03.1234567890 x"]
)
def test_what_has_no_stamp_of_dockers_has_no_position(piece: bytes) -> None:
    with pytest.raises(ValueError):
        since_of(piece)
