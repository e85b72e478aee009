"""Servers of every kind: the client always ends in time, with a response or with HttpError."""

import asyncio
import contextlib
import gzip
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.unit.clock import unstalled
from tests.unit.limits import peak_bytes
from tests.unit.nodes import Network, least, network, until
from tests.unit.wire import answering, dripped, http, message

from sparkd.base.lib.http_client import (
    BODY_LIMIT_BYTES,
    KEEPALIVE_SECONDS,
    ConnectRefused,
    HttpClient,
    HttpError,
    ReceivedResponse,
)

SECONDS = 2.0


@pytest.fixture(scope="module")
def loop() -> Iterator[Network]:
    with network() as made:
        yield made


def get(loop: Network, port: int, seconds: float = SECONDS) -> ReceivedResponse:
    return loop.submit(HttpClient(f"http://127.0.0.1:{port}").request("/", seconds)).result()


class Anything(NamedTuple):
    """A server that sends `content`, one piece, to each client, then closes."""

    port: int
    content: list[bytes]


@pytest.fixture(scope="module")
def anything() -> Iterator[Anything]:
    content = [b""]

    def answer(_request: bytes) -> Iterator[bytes]:
        yield content[0]
        raise OSError  # wire.serving closes the connection

    with answering("127.0.0.1", answer) as port:
        yield Anything(port, content)


NAMES = (
    *(b"Content-Length", b"Transfer-Encoding", b"Connection", b"Location", b"Set-Cookie", b"Content-Encoding"),
    *(b"Content-Type", b"Upgrade", b"Keep-Alive", b"Sparkd-Signature", b""),
)
VALUES = (
    *(b"", b"0", b"5", b"-1", b"9" * 30, b"chunked", b"gzip", b"close", b"mailto:x", b"//", b"http://[", b"a=\xff"),
    b"\0",
)
STATUSES = (*b"200 100 101 103 204 301 302 304 401 407 999 20 -1 \xff".split(),)


def _message(version: bytes, status: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = (b"HTTP/" + version + b" " + status + b" x", *(name + b": " + value for name, value in headers), b"", body)
    return b"\r\n".join(lines)


MESSAGES = st.builds(
    _message,
    st.sampled_from((b"1.1", b"1.1", b"1.0", b"2", b"0.9")),
    st.sampled_from(STATUSES) | st.binary(max_size=4),
    st.lists(
        st.tuples(st.sampled_from(NAMES) | st.binary(max_size=8), st.sampled_from(VALUES) | st.binary(max_size=20)),
        max_size=4,
    ),
    st.sampled_from((b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n")) | st.binary(max_size=40),
)


@given(st.lists(MESSAGES, min_size=1, max_size=3).map(b"".join) | st.binary(max_size=100))
@examples(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_answered_nothing_but_an_http_error_is_raised(
    loop: Network, anything: Anything, answer: bytes
) -> None:
    anything.content[0] = answer
    client = HttpClient(f"http://127.0.0.1:{anything.port}")
    for _ in range(2):  # what the first answer left behind is there for the second one
        with contextlib.suppress(HttpError):
            loop.submit(client.request("/report?known=x", SECONDS)).result()
    loop.submit(client.close()).result()


@contextmanager
def recording(*parts: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers each request with `parts`: its port, and the requests."""
    requests: list[bytes] = []

    def answer(request: bytes) -> tuple[bytes, ...]:
        requests.append(request)
        return parts

    with answering("127.0.0.1", answer) as port:
        yield port, requests


@pytest.mark.parametrize(
    "headers",
    [
        (b"Location: /elsewhere", b"Set-Cookie: a=b"),
        (b"Location: mailto:x",),
        (b"Location: http://[",),
        (b"Set-Cookie: a=\xff",),
    ],
)
def test_no_redirect_is_followed_and_no_cookie_is_kept(loop: Network, headers: tuple[bytes, ...]) -> None:
    with recording(http(b"", *headers, status=302)) as (port, requests):
        client = HttpClient(f"http://127.0.0.1:{port}", headers={"X": "y"})
        for _ in range(2):
            assert loop.submit(client.request("/a?b=c+d", SECONDS, headers={"Z": "z"})).result().status == 302
    assert requests[0] == requests[1]
    assert requests[0].splitlines()[0] == b"GET /a?b=c+d HTTP/1.1"
    assert {b"Accept-Encoding: identity", b"X: y", b"Z: z"} < set(requests[0].splitlines())


def test_a_body_is_posted_as_json(loop: Network) -> None:
    with recording(http(b"ok")) as (port, requests):
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert loop.submit(client.request("/v1", SECONDS, json={"a": 1})).result().body == b"ok"
    assert requests[0].startswith(b"POST /v1 HTTP/1.1\r\n")
    assert requests[0].endswith(b'\r\n\r\n{"a":1}')
    assert b"content-type: application/json" in requests[0].lower()


def test_a_port_where_nobody_listens_refuses(loop: Network, port: int) -> None:
    with pytest.raises(ConnectRefused, match=r"^\[Errno 111\] Connection refused$"):
        get(loop, port)


@pytest.mark.parametrize("key", ["ends\t", "two\nlines", "\u20ac"])
def test_what_no_header_can_carry_is_an_error(loop: Network, key: str) -> None:
    with answering("127.0.0.1", lambda _: (http(b"x"),)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"})
        with pytest.raises(HttpError):
            loop.submit(client.request("/", SECONDS)).result()


@pytest.mark.parametrize("name", ["a..b", "a" * 64, "[", "\u20ac."])
def test_a_name_that_no_machine_can_have_is_an_error(loop: Network, name: str) -> None:
    with pytest.raises(HttpError):
        loop.submit(HttpClient(f"http://{name}:80").request("/", SECONDS)).result()


class Slow:
    """A server that answers after 0.1 s and counts connections; it closes each after `answers`."""

    def __init__(self, listener: socket.socket, answers: int = 100) -> None:
        self.connections = 0
        self._listener = listener
        self._answers = answers
        self.client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            for _ in range(self._answers):
                if not message(sock):
                    return
                time.sleep(0.1)
                sock.sendall(http(b"x"))


def test_a_connection_carries_further_requests_and_another_follows_where_the_server_closed_it(loop: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Slow(listener, answers=2)
        for connections in (1, 1, 2):
            assert loop.submit(server.client.request("/", SECONDS)).result().body == b"x"
            assert server.connections == connections
            time.sleep(0.05)


def test_no_request_goes_over_a_connection_that_a_server_may_be_about_to_close(loop: Network) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Slow(listener)
        for pause, connections in ((0.0, 1), (0.1, 1), (KEEPALIVE_SECONDS + 0.1, 2)):
            time.sleep(pause)
            loop.submit(server.client.request("/", SECONDS)).result()
            assert server.connections == connections
        loop.submit(server.client.close()).result()
        loop.submit(server.client.request("/", SECONDS)).result()
        assert server.connections == 3


def test_requests_that_overlap_wait_for_none_of_each_other(loop: Network) -> None:
    async def all_at_once(client: HttpClient) -> None:
        await asyncio.gather(*(client.request("/", SECONDS) for _ in range(5)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Slow(listener)
        began = unstalled()
        loop.submit(all_at_once(server.client)).result()
        assert unstalled() - began < 0.3
        assert server.connections == 5


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("cut", [None, 20], ids=["whole", "begun"])
def test_what_comes_behind_an_answer_answers_nothing(loop: Network, later: bool, cut: int | None) -> None:
    """More than one response to a request must not be taken for the response to the next one."""
    first, more = http(b"first"), http(b"made up")[:cut]
    sent: list[bytes] = [first, more] if later else [first + more]
    with answering("127.0.0.1", lambda request: sent if b"/a" in request else (http(b"second"),)) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert loop.submit(client.request("/a", SECONDS)).result().body == b"first"
        time.sleep(0.1)  # what comes later is there
        assert loop.submit(client.request("/b", SECONDS)).result().body == b"second"


def test_a_server_that_closes_without_an_answer_gets_one_request(loop: Network) -> None:
    with recording() as (port, requests), pytest.raises(HttpError, match="closed the connection before its"):
        get(loop, port)
    assert len(requests) == 1


def endless(part: bytes, seconds: float = 0.0) -> Iterator[bytes]:
    while True:
        yield part
        time.sleep(seconds)


def begun(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ATTACKS: dict[str, Callable[[], Iterable[bytes]]] = {
    "silence": lambda: endless(b"", 0.01),
    "silence in the status": lambda: begun(b"HTTP/1.1 2", endless(b"", 0.01)),
    "silence in the headers": lambda: begun(OK + b"X: y\r\n", endless(b"", 0.01)),
    "silence in the body": lambda: begun(OK + b"Content-Length: 9\r\n\r\nx", endless(b"", 0.01)),
    "drip of a header": lambda: dripped(OK + b"X: ", 0.01),
    "drip of headers": lambda: begun(OK, endless(b"X: y\r\n", 0.01)),
    "drip of a body": lambda: dripped(OK + b"Content-Length: 9999\r\n\r\n", 0.01),
    "drip of chunks": lambda: begun(CHUNKED, endless(b"1\r\nx\r\n", 0.01)),
    "drip of a chunk's size": lambda: begun(CHUNKED, dripped(b"1;", 0.01)),
    "drip until it closes": lambda: begun(OK + b"\r\n", endless(b"x", 0.01)),
    "flood of empty trailers": lambda: begun(CHUNKED + b"0\r\n", endless(b"X: y\r\n", 0.01)),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_the_deadline_is_exact_under_attack(loop: Network, attack: Callable[[], Iterable[bytes]]) -> None:
    with answering("127.0.0.1", lambda _: attack()) as port:

        def took() -> float:
            began = time.monotonic()
            with pytest.raises(HttpError, match=r"^no answer within 0\.5 s$"):
                get(loop, port, 0.5)
            return time.monotonic() - began

        assert 0.5 <= least(took, 1.0) < 1.0, "a busy machine adds to it, no byte does"


ENDLESS: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "body": (lambda: begun(OK + b"\r\n", endless(b"x" * 65536)), f"answer of over {BODY_LIMIT_BYTES} bytes"),
    "chunks": (lambda: begun(CHUNKED, endless(b"10000\r\n" + b"x" * 65536 + b"\r\n")), "answer of over"),
    "headers": (lambda: begun(OK, endless(b"X: " + b"y" * 1000 + b"\r\n")), "."),
    "header": (lambda: begun(OK + b"X: ", endless(b"y" * 65536)), "."),
    "garbage": (lambda: endless(b"\0" * 65536), "."),
    "chunk's size": (lambda: begun(CHUNKED, endless(b"1" * 65536)), "."),
    "small chunks": (lambda: begun(CHUNKED, endless(b"1\r\nx\r\n" * 10000)), "answer of over"),
    "informational": (lambda: endless(b"HTTP/1.1 102 P\r\n\r\n" * 1000), "1xx, which nothing has"),
    "in pieces": (lambda: begun(b"HTTP/1", endless(b".0 100 C\r\n\r\nHTTP/1" * 1000)), "1xx, which nothing has"),
    "of another version": (lambda: endless(b"HTTP/2.3 100 C\r\n\r\n" * 1000), "1xx, which nothing has"),
}


@pytest.mark.parametrize(("attack", "text"), ENDLESS.values(), ids=ENDLESS)
def test_what_has_no_end_ends_before_the_deadline_and_takes_no_memory(
    loop: Network, attack: Callable[[], Iterable[bytes]], text: str
) -> None:
    with answering("127.0.0.1", lambda _: attack()) as port, peak_bytes() as peak:
        with pytest.raises(HttpError, match=text) as caught:
            get(loop, port, 60)
        assert peak() < 2 * BODY_LIMIT_BYTES
    assert "no answer within" not in str(caught.value)


def test_nothing_is_unpacked(loop: Network) -> None:
    packed = gzip.compress(b"\0" * (64 << 20), 9)
    with answering("127.0.0.1", lambda _: (http(packed, b"Content-Encoding: gzip"),)) as port:
        assert get(loop, port).body == packed


def test_a_connection_has_a_deadline_of_its_own(loop: Network) -> None:
    with socket.socket() as listener, contextlib.ExitStack() as queue:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # the queue is full: the kernel drops what comes
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for seconds, connect_seconds in ((5.0, 0.3), (0.3, 5.0)):
            began = time.monotonic()
            with pytest.raises(HttpError, match=r"^no answer within 0\.3 s$"):
                loop.submit(client.request("/", seconds, connect_seconds=connect_seconds)).result()
            assert 0.3 <= time.monotonic() - began < 4, "the other limit is 5 s"


def test_requests_that_fail_leave_no_descriptor_and_no_task_behind(loop: Network) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    descriptors, running = os.listdir("/proc/self/fd"), loop.submit(tasks()).result()
    with answering("127.0.0.1", lambda _: dripped(OK, 0.01)) as port:
        for attempt in range(60):
            with pytest.raises(HttpError):
                get(loop, port if attempt % 2 else 1, 0.02)
    until(lambda: len(os.listdir("/proc/self/fd")) <= len(descriptors))  # the server closes its side later
    assert loop.submit(tasks()).result() == running


def test_a_machine_that_stands_still_takes_no_connection_for_good(loop: Network) -> None:
    """Wherever a request was then: its deadline is over as it continues."""

    async def stand_still(client: HttpClient, turns: int) -> None:
        request = asyncio.ensure_future(client.request("/", 0.3))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.35)
        await asyncio.gather(request, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, servers = f"http://127.0.0.1:{listener.getsockname()[1]}", Slow(listener, answers=1)
        for turns in range(14):
            client = HttpClient(address, connections=1)
            loop.submit(client.request("/", SECONDS)).result()
            time.sleep(0.02)  # the server has closed the connection, and the next request begins with that
            loop.submit(stand_still(client, turns)).result()
            time.sleep(0.02)  # as above: a request that was answered after all has left one that the server closes
            assert loop.submit(client.request("/", SECONDS)).result().status == 200, turns
    assert servers.connections > 14
