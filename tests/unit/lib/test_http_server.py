"""The HTTP server: requests, held requests, refusals, and its end."""

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from tests.unit.clock import unstalled
from tests.unit.http_clients import (
    BODY,
    GET,
    PATIENCE_SECONDS,
    Holder,
    answer,
    connect,
    descriptors,
    fetch,
    flooding,
    get,
    rest,
    serving,
    simple,
)
from tests.unit.nodes import network, until
from tests.unit.wire import message

from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.http_server import HttpServer

PATHS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_handler_gets_source_path_with_query_and_headers_in_lower_case() -> None:
    requests = []

    async def handle(request: Request) -> Response:
        requests.append(request)
        return Response(200, BODY)

    request = b"GET /report?known=a%20b HTTP/1.1\r\nHost: a\r\nSparkd-Nonce: Xy\r\n\r\n"
    with serving(handle) as server:
        assert fetch(server, request, "127.0.0.9") == (200, BODY)
    challenge = requests[0].challenge
    assert requests == [Request("127.0.0.9", "/report?known=a%20b", {"host": "a", "sparkd-nonce": "Xy"}, challenge)]


def test_each_connection_has_a_challenge_of_its_own() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, request.challenge.encode())

    with serving(handle) as server:
        with connect(server) as sock:
            challenges = []
            for _ in range(2):
                sock.sendall(GET)
                challenges.append(message(sock).rpartition(b"\r\n")[2])
        assert challenges[0] == challenges[1]
        assert fetch(server, GET)[1] not in (challenges[0], b"")


def test_an_answer_has_its_type_and_the_handlers_headers_but_no_server_header() -> None:
    async def handle(_request: Request) -> Response:
        return Response(200, BODY, "text/plain", (("Sparkd-Signature", "ab"),))

    closing = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with serving(handle) as server, connect(server, data=closing) as sock:
        data = rest(sock)
    head = data.partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/plain" in head
    assert b"sparkd-signature: ab" in head
    assert b"server:" not in head
    assert b"h11" not in head


def test_pipelined_requests_are_answered_in_order() -> None:
    async def handle(request: Request) -> Response:
        return Response(200, request.path.encode())

    with serving(handle) as server, connect(server) as sock:
        for _ in range(3):
            sock.sendall(GET)
            assert answer(sock) == (200, b"/")
        sock.sendall(b"".join(get(f"/{number}") for number in range(20)))
        assert [answer(sock) for _ in range(20)] == [(200, b"/%d" % number) for number in range(20)]


def test_a_held_request_is_answered_on_news_or_after_its_time() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server, data=GET) as sock:
        until(lambda: holder.held == 1)
        assert not select.select([sock], [], [], 0.2)[0]
        began = unstalled()
        holder.publish()
        assert answer(sock) == (200, b"news")
        assert unstalled() - began < 1
    with serving(Holder(0.2)) as server:
        began = time.monotonic()
        assert fetch(server) == (200, b"old")
        assert 0.2 <= time.monotonic() - began < 2


def test_requests_behind_a_held_one_wait_in_a_bounded_buffer() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server, data=GET + GET) as sock, connect(server, data=GET) as flood:
        until(lambda: holder.held == 2)
        with suppress(ConnectionError):
            for _ in range(100):
                flood.sendall(b"x" * 65536)
        rest(flood)
        holder.publish()
        assert [answer(sock), answer(sock)] == [(200, b"news")] * 2


@pytest.mark.parametrize("behind", [b"", GET, b"GET / "], ids=["nothing", "a request", "a part of one"])
def test_the_place_of_a_client_that_left_while_held_is_free_again(behind: bytes) -> None:
    holder = Holder()
    with serving(holder, per_source=1) as server:
        with connect(server, data=GET + behind):
            until(lambda: holder.held == 1)
        until(lambda: holder.left == 1)
        holder.publish()
        until(lambda: fetch(server) == (200, b"news"))


def test_63_held_requests_leave_a_place_and_are_answered_together_without_a_thread() -> None:
    holder = Holder()
    with serving(holder) as server, ExitStack() as stack:
        threads = threading.active_count()
        held = [stack.enter_context(connect(server, f"127.0.1.{number}", GET)) for number in range(1, 64)]
        until(lambda: holder.held == 63)
        assert fetch(server, get("/now")) == (200, BODY)
        assert threading.active_count() <= threads
        began = unstalled()
        holder.publish()
        assert [answer(sock) for sock in held] == [(200, b"news")] * 63
        assert unstalled() - began < 1


def test_a_client_that_closes_its_sending_half_gets_the_answer_to_what_it_sent() -> None:
    with serving() as server, connect(server, data=GET) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert answer(sock) == (200, BODY)
        assert rest(sock) == b""


@pytest.mark.parametrize(
    ("raw", "status"),
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
def test_other_than_a_small_get_is_refused_before_the_handler(raw: bytes, status: int) -> None:
    requests = []

    async def handle(request: Request) -> Response:
        requests.append(request)
        return Response(200)

    with serving(handle) as server:
        with connect(server, data=raw) as sock:
            assert answer(sock)[0] in (status, 0 if status in (413, 431) else status)
            rest(sock)
        assert requests == []
        assert fetch(server)[0] == 200


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
def test_an_upgrade_is_ignored_and_nothing_is_logged(
    lines: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server, connect(server) as sock:
        sock.sendall(b"\r\n".join((b"GET / HTTP/1.1", b"Host: a", *lines, b"", b"")) + GET)
        assert [answer(sock), answer(sock)] == [(200, BODY)] * 2
        sock.sendall(b"garbage\r\n\r\n")
        assert answer(sock) == (400, b"")
        assert rest(sock) == b""
    assert caplog.records == []


def test_http_1_0_is_answered_and_closed() -> None:
    with serving() as server, connect(server, data=b"GET / HTTP/1.0\r\n\r\n") as sock:
        assert answer(sock) == (200, BODY)
        assert rest(sock) == b""


def test_garbage_behind_a_held_request_is_refused_after_the_answer() -> None:
    holder = Holder()
    with serving(holder) as server, connect(server, data=GET + b"\0garbage\r\n\r\n") as sock:
        until(lambda: holder.held == 1)
        holder.publish()
        assert [answer(sock), answer(sock)] == [(200, b"news"), (400, b"")]
        assert rest(sock) == b""


def test_a_handler_that_raises_gives_500_and_is_reported_once() -> None:
    reported: list[str] = []

    async def handle(request: Request) -> Response:
        match request.path:
            case "/raise":
                raise ValueError("a bug")
            case "/wrong":
                return Response(200, headers=(("a b", "c\r\nd"),))
            case "/never":
                await asyncio.sleep(60)
        return Response(200)

    with serving(handle, on_error=reported.append, handler_seconds=0.1) as server:
        assert [fetch(server, get(path))[0] for path in ("/raise", "/raise", "/never", "/")] == [500, 500, 500, 200]
        assert fetch(server, get("/wrong"))[0] in (0, 500)
    errors = [text.partition(": ")[2].partition(":")[0] for text in reported]
    assert errors == ["ValueError", "RuntimeError", "LocalProtocolError"]


def test_without_descriptors_the_server_waits_without_spinning_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
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
    logged = [(record.name, str(record.exc_info and record.exc_info[1])) for record in caplog.records]
    assert logged[0] == ("asyncio", "[Errno 24] Too many open files")
    assert len(logged) <= 3  # one each second


def test_the_end_of_the_loop_closes_every_connection_and_leaves_no_socket() -> None:
    before, threads = descriptors(), threading.active_count()
    holder = Holder()
    with ExitStack() as stack:
        with serving(holder) as server:
            held, silent, idle = (stack.enter_context(connect(server, data=data)) for data in (GET, b"", get("/now")))
            assert answer(idle) == (200, BODY)
            until(lambda: holder.held == 1)
        assert rest(held) == rest(silent) == rest(idle) == b""
        assert holder.left == 1
        with pytest.raises(ConnectionRefusedError):
            connect(server)
    assert threading.active_count() <= threads
    assert descriptors() <= before


def test_the_end_under_a_flood_of_connections_leaves_no_client_waiting() -> None:
    for _ in range(10):
        before = descriptors()
        with ExitStack() as stack, serving() as server:
            stack.enter_context(flooding(partial(fetch, server), 4))
            time.sleep(0.03)
        assert descriptors() <= before


def test_an_address_that_cannot_be_bound_is_an_oserror() -> None:
    before = descriptors()
    with serving() as server:
        with pytest.raises(OSError, match="in use"):
            HttpServer("127.0.0.1", server.port, simple)
        assert fetch(server) == (200, BODY)
    for address in ("192.0.2.1", "not-an-address"):
        with pytest.raises(OSError):
            HttpServer(address, 0, simple)
    assert descriptors() <= before


def test_ipv6_is_served_too() -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    requests = []

    async def handle(request: Request) -> Response:
        requests.append(request)
        return Response(200, BODY)

    with network() as loop:
        server = HttpServer("::1", 0, handle)
        loop.spawn(server.serve())
        with socket.create_connection(("::1", server.port), PATIENCE_SECONDS) as sock:
            sock.sendall(GET)
            assert answer(sock) == (200, BODY)
    assert [request.source for request in requests] == ["::1"]


def test_the_server_does_not_import_its_librarys_command_line() -> None:
    unwanted = {"click", "rich", "multiprocessing", "uvicorn.main"}
    code = f"import sys, sparkd.base.lib.http_server; print({unwanted} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=PATHS)
    assert done.stdout == "set()\n"
