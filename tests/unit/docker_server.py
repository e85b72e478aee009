"""A dockerd on a socket of its own, which answers with bytes of the test."""

import json
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.unit.wire import http, serving

VERSION = re.compile(r"/v\d+\.\d+(?=/)")
Answer = Callable[[str], Iterable[bytes]]


@contextmanager
def listening(path: str = "") -> Iterator[tuple[str, socket.socket]]:
    """A socket that accepts connections and answers nothing, with its path."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = path or f"{folder}/docker.sock"  # tmp_path may be longer than a socket's name can be
        listener.bind(path)
        listener.listen(64)
        yield path, listener


@contextmanager
def dockerd(answer: Answer, path: str = "") -> Iterator[str]:
    """Serve; the path of the socket. `answer` gets such as "GET /v1.44/info?x=1"."""

    def answered(request: bytes) -> Iterable[bytes]:
        return answer(request.decode().partition(" HTTP/")[0])

    with listening(path) as (path, listener), serving(listener, answered):
        yield path


def plain(request: str) -> str:
    """Without the version of the API and the query."""
    return VERSION.sub("", request.partition("?")[0])


def json_response(body: object, status: int = 200) -> tuple[bytes]:
    return (http(json.dumps(body).encode(), b"Content-Type: application/json", status=status),)


def answers(found: dict[str, tuple[int, bytes]]) -> Answer:
    """404 for other paths."""

    def answer(request: str) -> Iterable[bytes]:
        status, body = found.get(plain(request), (404, b'{"message": "no such thing"}'))
        return (http(body, b"Content-Type: application/json", status=status),)

    return answer


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STAMP = b"2026-11-27T01:02:03.123456789Z "
"""Before each piece of a log."""
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"
