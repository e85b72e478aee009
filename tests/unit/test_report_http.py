"""The HTTP server under clients of every kind. Real sockets; addresses of 127/8 stand for sources."""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import pytest
from tests.unit.nodes import network

from sparkd.lib.http_connection import Handler, Limits, Request, Response
from sparkd.lib.http_server import HttpServer

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = b'{"schema": 1}'
PATIENCE_SECONDS = 10.0
PATHS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
PLENTY = Limits(requests_per_second=1e6, burst=10**6)

Opened = Callable[..., AbstractContextManager[HttpServer]]


async def simple(_request: Request) -> Response:
    return Response(200, BODY)


class Holder:
    """Holds every request until there is news, or for `hold_seconds`. `left` counts requests whose client left."""

    def __init__(self, hold_seconds: float = 60.0) -> None:
        self.asked = 0
        self.left = 0
        self._hold_seconds = hold_seconds
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, _request: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        self.asked += 1
        try:
            await asyncio.wait_for(self._news.wait(), self._hold_seconds)
        except TimeoutError:
            return Response(200, b"old")
        except asyncio.CancelledError:
            self.left += 1
            raise
        return Response(200, b"news")

    def publish(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._news.set)


@contextmanager
def serving(
    handle: Handler = simple,
    limits: Limits = PLENTY,
    admits: Callable[[str], bool] = lambda _: True,
    told: list[str] | None = None,
) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0, handle, limits, admits, (told if told is not None else []).append)
    with network() as loop:
        server.start(loop)
        try:
            yield server
        finally:
            server.close()


def connect(server: HttpServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS, (source, 0))


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """One answer, by its Content-Length; status 0 where the connection was closed instead."""
    data = b""
    with suppress(ConnectionError):
        while b"\r\n\r\n" not in data:
            if not (more := sock.recv(1)):
                return 0, b""
            data += more
        length = next(int(line[15:]) for line in data.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = b""
        while len(body) < length:
            body += sock.recv(length - len(body))
        return int(data.split(b" ")[1]), body
    return 0, b""


def readable(sock: socket.socket, seconds: float) -> bool:
    return bool(select.select([sock], [], [], seconds)[0])


def closed(sock: socket.socket) -> bool:
    with suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


def ask(server: HttpServer, data: bytes = GET, source: str = "127.0.0.1") -> tuple[int, bytes]:
    with connect(server, source) as sock:
        with suppress(ConnectionError):
            sock.sendall(data)
        return answer(sock)


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return true()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_handler_gets_source_path_with_query_and_headers_in_lower_case() -> None:
    seen = []

    async def handle(request: Request) -> Response:
        seen.append(request)
        return Response(200, BODY, headers=(("Sparkd-Signature", "ab"),))

    with serving(handle) as server, connect(server, "127.0.0.9") as sock:
        sock.sendall(b"GET /report?known=a%20b HTTP/1.1\r\nHost: a\r\nSparkd-Nonce: Xy\r\n\r\n")
        assert answer(sock) == (200, BODY)
    assert seen == [Request("127.0.0.9", "/report?known=a%20b", {"host": "a", "sparkd-nonce": "Xy"})]


def test_an_answer_says_its_type_and_what_the_handler_adds_and_nothing_of_the_server() -> None:
    async def handle(_request: Request) -> Response:
        return Response(200, BODY, "text/plain", (("Sparkd-Signature", "ab"),))

    with serving(handle) as server, connect(server) as sock:
        sock.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        data = b""
        while more := sock.recv(4096):
            data += more
    head = data.partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/plain" in head
    assert b"sparkd-signature: ab" in head
    assert b"server:" not in head
    assert b"h11" not in head


def test_a_connection_serves_one_request_after_another() -> None:
    with serving() as server, connect(server) as sock:
        for _ in range(3):
            sock.sendall(GET)
            assert answer(sock) == (200, BODY)


def test_requests_sent_all_at_once_are_answered_in_order() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, request.path.encode())

    with serving(handle) as server, connect(server) as sock:
        sock.sendall(b"".join(GET.replace(b"/ ", b"/%d " % number, 1) for number in range(20)))
        assert [answer(sock) for _ in range(20)] == [(200, b"/%d" % number) for number in range(20)]


def test_a_held_request_is_answered_when_there_is_news() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server) as sock:
        sock.sendall(GET)
        assert until(lambda: holder.asked == 1)
        assert not readable(sock, 0.2)
        began = time.monotonic()
        holder.publish()
        assert answer(sock) == (200, b"news")
        assert time.monotonic() - began < 1


def test_a_held_request_is_answered_when_its_time_is_over() -> None:
    with serving(Holder(0.2)) as server:
        began = time.monotonic()
        assert ask(server) == (200, b"old")
        assert 0.2 <= time.monotonic() - began < 2


def test_what_comes_behind_a_held_request_waits_for_its_turn_and_never_piles_up() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server) as sock, connect(server) as flood:
        sock.sendall(GET + GET)
        flood.sendall(GET)
        assert until(lambda: holder.asked == 2)
        with suppress(ConnectionError):
            for _ in range(100):
                flood.sendall(b"x" * 65536)
        assert closed(flood)
        holder.publish()
        assert [answer(sock), answer(sock)] == [(200, b"news")] * 2


@pytest.mark.parametrize("behind", [b"", GET, b"GET / "], ids=["nothing", "a request", "a part of one"])
def test_the_place_of_a_client_that_left_while_held_is_free_again(behind: bytes) -> None:
    holder = Holder()
    with serving(holder, Limits(per_source=1, requests_per_second=1e6)) as server:
        with connect(server) as sock:
            sock.sendall(GET + behind)
            assert until(lambda: holder.asked == 1)
        assert until(lambda: holder.left == 1)
        holder.publish()
        assert until(lambda: ask(server) == (200, b"news"))


def test_63_held_requests_leave_a_place_and_are_answered_together_without_a_thread() -> None:
    holder = Holder()

    async def handle(request: Request) -> Response:
        return await holder(request) if request.path == "/held" else Response(200, BODY)

    with serving(handle) as server, ExitStack() as stack:
        threads = threading.active_count()
        held = [stack.enter_context(connect(server, f"127.0.1.{number}")) for number in range(1, 64)]
        for sock in held:
            sock.sendall(GET.replace(b"/ ", b"/held ", 1))
        assert until(lambda: holder.asked == 63)
        assert ask(server) == (200, BODY)
        assert threading.active_count() <= threads
        began = time.monotonic()
        holder.publish()
        assert [answer(sock) for sock in held] == [(200, b"news")] * 63
        assert time.monotonic() - began < 1


def test_a_client_that_closes_its_sending_half_gets_the_answer_to_what_it_sent() -> None:
    with serving() as server, connect(server) as sock:
        sock.sendall(GET)
        sock.shutdown(socket.SHUT_WR)
        assert answer(sock) == (200, BODY)
        assert closed(sock)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET, 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 413),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
        (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nSparkd-Nonce: a\r\nsparkd-nonce: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: x\r\nA B: c\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage\r\n\r\n", 400),
        (b"\0" * 5000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20000, 431),
    ],
)
def test_what_is_no_small_get_is_refused_and_closed_and_no_handler_sees_it(data: bytes, status: int) -> None:
    seen = []

    async def handle(request: Request) -> Response:
        seen.append(request)
        return Response(200)

    with serving(handle) as server:
        with connect(server) as sock:
            with suppress(ConnectionError):
                sock.sendall(data)
            assert answer(sock)[0] in (status, 0 if status in (413, 431) else status)
            assert closed(sock)
        assert seen == []
        assert ask(server)[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        (b"Expect: 100-continue",),
        (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
        (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: YQ=="),
        (b"Connection: Upgrade", b"Upgrade:"),
    ],
    ids=["continue", "h2c", "websocket", "nothing"],
)
def test_what_asks_for_another_protocol_is_answered_in_this_one_and_nothing_is_logged(
    lines: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server, connect(server) as sock:
        sock.sendall(b"\r\n".join((b"GET / HTTP/1.1", b"Host: a", *lines, b"", b"")) + GET)
        assert [answer(sock), answer(sock)] == [(200, BODY)] * 2
        sock.sendall(b"garbage\r\n\r\n")
        assert answer(sock) == (400, b"")
        assert closed(sock)
    assert caplog.records == []


def test_http_1_0_is_answered_and_closed() -> None:
    with serving() as server, connect(server) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert answer(sock) == (200, BODY)
        assert closed(sock)


def test_garbage_behind_a_held_request_is_refused_after_the_answer() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server) as sock:
        sock.sendall(GET + b"\0garbage\r\n\r\n")
        assert until(lambda: holder.asked == 1)
        holder.publish()
        assert [answer(sock), answer(sock)] == [(200, b"news"), (400, b"")]
        assert closed(sock)


def test_a_request_that_drips_is_closed_at_its_deadline_however_lively_the_drip() -> None:
    with serving(limits=Limits(request_seconds=0.3)) as server, connect(server) as sock:
        began = time.monotonic()
        with suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 10000:
                sock.sendall(bytes((byte,)))
                time.sleep(0.01)
        assert 0.3 <= time.monotonic() - began < 3


def test_a_connection_that_says_nothing_is_closed() -> None:
    limits = Limits(request_seconds=0.2, idle_seconds=0.4)
    began = time.monotonic()
    with serving(limits=limits) as server, connect(server) as silent, connect(server) as idle:
        idle.sendall(GET)
        assert answer(idle) == (200, BODY)
        assert closed(silent)
        assert 0.2 <= time.monotonic() - began < 2
        assert closed(idle)
        assert 0.4 <= time.monotonic() - began < 2


def test_a_second_request_that_drips_has_no_longer_than_the_first() -> None:
    limits = Limits(request_seconds=0.2, idle_seconds=60)
    with serving(limits=limits) as server, connect(server) as sock:
        sock.sendall(GET + b"GET ")
        assert answer(sock) == (200, BODY)
        assert closed(sock)
    with serving(limits=limits) as server, connect(server) as sock:
        sock.sendall(GET)
        assert answer(sock) == (200, BODY)
        sock.sendall(b"GET ")
        assert closed(sock)


def test_a_client_that_never_reads_loses_its_connection_and_delays_nobody() -> None:
    large = b"x" * (16 << 20)  # more than the kernel keeps for both ends

    async def handle(request: Request) -> Response:
        return Response(200, large if request.path == "/large" else BODY)

    with serving(handle, Limits(answer_seconds=0.5)) as server, connect(server, "127.0.0.2") as sock:
        sock.sendall(GET.replace(b"/ ", b"/large ", 1))
        time.sleep(0.1)
        began = time.monotonic()
        assert ask(server) == (200, BODY)
        assert time.monotonic() - began < 0.5
        time.sleep(0.6)
        got = 0
        with suppress(ConnectionError):
            while more := len(sock.recv(1 << 20)):
                got += more
        assert got < len(large)


def test_requests_sent_all_at_once_and_answers_never_read_take_the_memory_of_one_answer() -> None:
    large = b"x" * (16 << 20)

    async def handle(_request: Request) -> Response:
        return Response(200, large)

    with serving(handle, Limits(answer_seconds=0.5)) as server, connect(server) as sock:
        before = resident_bytes()
        sock.sendall(GET * 20)
        time.sleep(0.3)
        assert resident_bytes() - before < 3 * len(large)
        time.sleep(0.5)
        got = 0
        with suppress(ConnectionError):
            while more := len(sock.recv(1 << 20)):
                got += more
        assert got < len(large)


def test_a_client_that_took_a_large_answer_slowly_is_answered_again() -> None:
    large = b"x" * (16 << 20)

    async def handle(request: Request) -> Response:
        return Response(200, large if request.path == "/large" else BODY)

    with serving(handle, Limits(answer_seconds=2.0, request_seconds=0.2)) as server, connect(server) as sock:
        sock.sendall(GET.replace(b"/ ", b"/large ", 1))
        time.sleep(0.5)  # longer than a request may take, which this is none of
        assert answer(sock) == (200, large)
        time.sleep(0.5)
        sock.sendall(GET)
        assert answer(sock) == (200, BODY)


def test_a_large_answer_arrives_whole() -> None:
    large = bytes(range(256)) * (16 << 10)

    async def handle(_request: Request) -> Response:
        return Response(200, large)

    with serving(handle) as server:
        assert ask(server) == (200, large)


def test_who_asks_too_often_gets_429_and_takes_nothing_from_the_others() -> None:
    with serving(limits=Limits(requests_per_second=1, burst=3)) as server:
        assert [ask(server)[0] for _ in range(4)] == [200, 200, 200, 429]
        assert ask(server, source="127.0.0.2")[0] == 200
        time.sleep(1.1)
        assert ask(server)[0] == 200


def test_a_stranger_gets_401_and_takes_nobodys_place() -> None:
    limits = Limits(connections=1, per_source=1)
    with (
        serving(limits=limits, admits=lambda source: source == "127.0.0.1") as server,
        connect(server, "127.0.0.66") as stranger,
    ):
        assert answer(stranger) == (401, b"")
        assert closed(stranger)
        assert ask(server) == (200, BODY)


def test_of_a_full_source_the_oldest_connection_that_is_not_known_makes_room() -> None:
    with (
        serving(limits=Limits(per_source=3)) as server,
        connect(server) as known,
        connect(server) as oldest,
        connect(server) as other,
    ):
        known.sendall(GET)
        assert answer(known) == (200, BODY)
        with connect(server) as newest:
            assert closed(oldest)
            for one in (known, other, newest):
                one.sendall(GET)
                assert answer(one) == (200, BODY)
            with connect(server) as refused:  # all are known now
                assert closed(refused)


def test_a_request_that_is_held_makes_room_for_nobody_and_one_that_was_refused_does() -> None:
    holder = Holder()

    async def handle(request: Request) -> Response:
        return Response(401) if request.path == "/unsigned" else await holder(request)

    with (
        serving(handle, Limits(per_source=2)) as server,
        connect(server) as held,
        connect(server) as refused,
    ):
        held.sendall(GET)
        assert until(lambda: holder.asked == 1)
        refused.sendall(GET.replace(b"/ ", b"/unsigned ", 1))
        assert answer(refused) == (401, b"")
        with connect(server), connect(server):
            assert closed(refused)
            holder.publish()
            assert answer(held) == (200, b"news")


def test_refused_requests_without_a_pause_on_all_places_of_a_source_keep_nobody_of_it_out() -> None:
    async def handle(request: Request) -> Response:
        return Response(401) if request.path == "/unsigned" else Response(200, BODY)

    ended = threading.Event()

    def flood(server: HttpServer) -> None:
        data = GET.replace(b"/ ", b"/unsigned ", 1) * 100
        while not ended.is_set():
            with suppress(OSError), connect(server) as sock:
                while not ended.is_set():
                    sock.sendall(data)
                    sock.recv(65536)

    with serving(handle, Limits(per_source=4, requests_per_second=math.inf)) as server:
        floods = [threading.Thread(target=flood, args=(server,)) for _ in range(8)]
        for one in floods:
            one.start()
        try:
            time.sleep(0.3)
            answers = [ask(server)[0] for _ in range(40)]
            assert answers.count(200) >= 30
        finally:
            ended.set()
            for one in floods:
                one.join()


def test_a_bug_in_the_admission_admits_nobody_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def admits(source: str) -> bool:
        if source == "127.0.0.66":
            raise ValueError("a bug")
        return True

    with (
        serving(limits=Limits(connections=1, request_seconds=0.3), admits=admits) as server,
        connect(server, "127.0.0.66") as silent,
    ):
        assert ask(server, source="127.0.0.66") == (401, b"")
        assert ask(server) == (200, BODY)
        assert closed(silent)
    assert [(one.name, str(one.exc_info and one.exc_info[1])) for one in caplog.records] == [("asyncio", "a bug")] * 2


def test_past_all_connections_a_new_one_is_closed_at_once() -> None:
    with serving(limits=Limits(connections=2)) as server:
        with connect(server, "127.0.0.2") as first, connect(server, "127.0.0.3"), connect(server, "127.0.0.4") as third:
            assert closed(third)
            first.sendall(GET)
            assert answer(first) == (200, BODY)
        assert until(lambda: ask(server)[0] == 200)


def test_1000_connections_of_one_source_leave_another_its_answer_and_memory_and_threads_as_they_were() -> None:
    with serving(limits=Limits()) as server:
        assert ask(server)[0] == 200
        memory, threads = resident_bytes(), threading.active_count()
        crowd = []
        slowest = 0.0
        for number in range(1000):
            crowd.append(connect(server, "127.0.0.66"))
            with suppress(ConnectionError):
                crowd[-1].sendall(b"GET / HTTP/1.1\r\nX: ")
            if number % 100 == 99:
                began = time.monotonic()
                assert ask(server, source="127.0.0.2") == (200, BODY)
                slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1
        assert threading.active_count() <= threads
        # 1,000 client sockets of this very process are in it.
        assert resident_bytes() - memory < 8 << 20
        for sock in crowd:
            sock.close()
        assert until(lambda: ask(server, source="127.0.0.66")[0] == 200)


def test_a_handler_that_raises_gives_500_is_told_once_and_ends_nothing() -> None:
    told: list[str] = []

    async def handle(request: Request) -> Response:
        if request.path == "/raise":
            raise ValueError("a bug")
        if request.path == "/wrong":
            return Response(200, headers=(("a b", "c\r\nd"),))
        if request.path == "/never":
            await asyncio.sleep(60)
        return Response(200)

    with serving(handle, Limits(handler_seconds=0.1), told=told) as server:
        for _ in range(2):
            assert ask(server, GET.replace(b"/ ", b"/raise ", 1)) == (500, b"")
        assert ask(server, GET.replace(b"/ ", b"/wrong ", 1))[0] in (0, 500)
        assert ask(server, GET.replace(b"/ ", b"/never ", 1))[0] == 500
        assert ask(server)[0] == 200
    assert [text.partition(": ")[2].partition(":")[0] for text in told] == [
        "ValueError",
        "LocalProtocolError",
        "RuntimeError",
    ]


def test_without_descriptors_the_server_waits_for_some_does_not_spin_and_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as server:
        client = socket.socket()
        client.settimeout(PATIENCE_SECONDS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
        filled = []
        try:
            with suppress(OSError):
                while True:
                    filled.append(os.dup(client.fileno()))
            client.connect(("127.0.0.1", server.port))
            client.sendall(GET)
            began, spent = time.monotonic(), time.process_time()
            while time.monotonic() - began < 1.2:
                time.sleep(0.1)
            assert time.process_time() - spent < 0.3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in filled:
                os.close(fd)
        assert answer(client) == (200, BODY)
        client.close()
    logged = [(one.name, str(one.exc_info and one.exc_info[1])) for one in caplog.records]
    assert logged[0] == ("asyncio", "[Errno 24] Too many open files")
    assert len(logged) <= 3  # one each second


def test_close_leaves_no_socket_and_may_come_twice() -> None:
    before, threads = descriptors(), threading.active_count()
    holder = Holder()
    with network() as loop:
        server = HttpServer("127.0.0.1", 0, holder)
        server.start(loop)
        with connect(server) as held, connect(server) as silent:
            held.sendall(GET)
            assert until(lambda: holder.asked == 1)
            server.close()
            assert closed(held)
            assert closed(silent)
        server.close()
        assert holder.left == 1
        with pytest.raises(ConnectionRefusedError):
            connect(server)
    assert threading.active_count() <= threads
    assert descriptors() == before


def test_close_under_a_flood_of_connections_leaves_no_client_waiting() -> None:
    ended = threading.Event()

    def flood(server: HttpServer) -> None:
        while not ended.is_set():
            with suppress(OSError):
                ask(server)

    for _ in range(10):
        with network() as loop:
            before = descriptors()
            server = HttpServer("127.0.0.1", 0, simple)
            server.start(loop)
            floods = [threading.Thread(target=flood, args=(server,)) for _ in range(4)]
            for one in floods:
                one.start()
            time.sleep(0.03)
            server.close()
            ended.set()
            began = time.monotonic()
            for one in floods:
                one.join()
            assert time.monotonic() - began < 1
            assert descriptors() == before
            ended.clear()


def test_the_end_of_the_loop_is_the_end_of_the_server() -> None:
    before = descriptors()
    with network() as loop:
        server = HttpServer("127.0.0.1", 0, simple)
        server.start(loop)
        sock = connect(server)
        sock.sendall(GET)
        assert answer(sock) == (200, BODY)
    assert closed(sock)
    sock.close()
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    assert descriptors() == before


def test_close_without_start_leaves_nothing_either() -> None:
    before = descriptors()
    server = HttpServer("127.0.0.1", 0, simple)
    server.close()
    assert descriptors() == before


def test_an_address_that_can_not_be_had_is_an_oserror_at_once() -> None:
    before = descriptors()
    with serving() as server, pytest.raises(OSError, match="in use"):
        HttpServer("127.0.0.1", server.port, simple)
    for address in ("192.0.2.1", "not-an-address"):
        with pytest.raises(OSError):
            HttpServer(address, 0, simple)
    assert descriptors() == before


def test_ipv6_is_served_too() -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        return
    seen = []

    async def handle(request: Request) -> Response:
        seen.append(request.source)
        return Response(200, BODY)

    with network() as loop:
        server = HttpServer("::1", 0, handle)
        server.start(loop)
        with socket.create_connection(("::1", server.port), PATIENCE_SECONDS) as sock:
            sock.sendall(GET)
            assert answer(sock) == (200, BODY)
    assert seen == ["::1"]


def test_the_server_comes_without_its_librarys_command_line() -> None:
    unwanted = {"click", "rich", "multiprocessing", "uvicorn.main"}
    code = f"import sys, sparkd.lib.http_server; print({unwanted} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=PATHS)
    assert done.stdout == "set()\n"
