"""Bounds on what clients of the HTTP server can use: time, places, requests, memory."""

import math
import socket
import threading
import time
from contextlib import suppress

import pytest
from tests.unit.clock import unstalled
from tests.unit.http_clients import (
    BODY,
    GET,
    LARGE,
    OTHER,
    STRANGER,
    Holder,
    answer,
    connect,
    fetch,
    flooding,
    get,
    rest,
    serving,
)
from tests.unit.limits import peak_bytes
from tests.unit.nodes import until

from sparkd.base.lib.http_connection import Limits


def test_a_request_that_drips_is_closed_at_its_deadline() -> None:
    with serving(request_seconds=0.3) as server, connect(server) as sock:
        began = time.monotonic()
        with suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 10000:
                sock.sendall(bytes((byte,)))
                time.sleep(0.01)
        assert 0.3 <= time.monotonic() - began < 3


def test_a_silent_connection_is_closed() -> None:
    began = time.monotonic()
    with (
        serving(request_seconds=0.2, idle_seconds=0.4) as server,
        connect(server) as silent,
        connect(server, data=GET) as idle,
    ):
        assert answer(idle) == (200, BODY)
        assert rest(silent) == b""
        assert 0.2 <= time.monotonic() - began < 2
        assert rest(idle) == b""
        assert 0.4 <= time.monotonic() - began < 2


@pytest.mark.parametrize(("first", "then"), [(GET + b"GET ", b""), (GET, b"GET ")], ids=["at once", "later"])
def test_a_second_request_that_drips_has_no_longer_than_the_first(first: bytes, then: bytes) -> None:
    with serving(request_seconds=0.2) as server, connect(server, data=first) as sock:
        assert answer(sock) == (200, BODY)
        sock.sendall(then)
        assert rest(sock) == b""


def test_a_client_that_never_reads_loses_its_connection_and_delays_no_other() -> None:
    with serving(answer_seconds=0.5) as server, connect(server, OTHER, get("/large")) as sock:
        time.sleep(0.1)
        began = unstalled()
        assert fetch(server) == (200, BODY)
        assert unstalled() - began < 0.5
        time.sleep(0.6)
        assert len(rest(sock)) < len(LARGE)


def test_pipelined_requests_whose_answers_are_not_read_take_the_memory_of_one_answer() -> None:
    with serving(answer_seconds=0.5) as server, connect(server) as sock:
        with peak_bytes() as peak:
            sock.sendall(get("/large") * 20)
            time.sleep(0.3)
            assert peak() < 3 * len(LARGE)
        time.sleep(0.5)
        assert len(rest(sock)) < len(LARGE)


def test_a_client_that_took_a_large_answer_slowly_gets_it_whole_and_is_answered_again() -> None:
    with serving(answer_seconds=2.0, request_seconds=0.2) as server, connect(server, data=get("/large")) as sock:
        time.sleep(0.5)  # longer than a request may take
        assert answer(sock) == (200, LARGE)
        time.sleep(0.5)
        sock.sendall(GET)
        assert answer(sock) == (200, BODY)


def test_a_source_over_its_rate_gets_429_and_others_do_not() -> None:
    with serving(requests_per_second=1, burst=3) as server:
        assert [fetch(server)[0] for _ in range(4)] == [200, 200, 200, 429]
        assert fetch(server, source=OTHER)[0] == 200
        time.sleep(1.1)
        assert fetch(server)[0] == 200


def test_a_stranger_gets_401_and_takes_no_place() -> None:
    with (
        serving(admits=lambda source: source != STRANGER, connections=1, per_source=1) as server,
        connect(server, STRANGER) as stranger,
    ):
        assert answer(stranger) == (401, b"")
        assert rest(stranger) == b""
        assert fetch(server) == (200, BODY)


def test_of_a_full_source_the_oldest_connection_never_served_is_dropped() -> None:
    with serving(per_source=3) as server, connect(server, data=GET) as known:
        assert answer(known) == (200, BODY)
        with connect(server) as oldest, connect(server) as other, connect(server) as newest:
            assert rest(oldest) == b""
            for client in (known, other, newest):
                client.sendall(GET)
                assert answer(client) == (200, BODY)
            with connect(server) as refused:  # all are known now
                assert rest(refused) == b""


def test_a_connection_with_a_held_request_is_not_dropped_and_a_refused_one_is() -> None:
    holder = Holder()
    with serving(holder, per_source=2) as server, connect(server, data=GET) as held:
        until(lambda: holder.held == 1)
        with connect(server, data=get("/unsigned")) as refused:
            assert answer(refused) == (401, b"")
            with connect(server), connect(server):
                assert rest(refused) == b""
                holder.publish()
                assert answer(held) == (200, b"news")


def test_a_flood_of_refused_requests_does_not_keep_its_source_out() -> None:
    with serving(per_source=4, requests_per_second=math.inf) as server:

        def flood() -> None:
            with connect(server) as sock:
                for _ in range(1000):
                    sock.sendall(get("/unsigned") * 100)
                    sock.recv(65536)
                    if ended:
                        break

        ended: list[bool] = []
        with flooding(flood, 8):
            time.sleep(0.3)
            answers = [fetch(server)[0] for _ in range(40)]
            ended.append(True)
        assert answers.count(200) >= 30


def test_a_bug_in_admits_refuses_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def admits(source: str) -> bool:
        if source == STRANGER:
            raise ValueError("a bug")
        return True

    with serving(admits=admits, connections=1, request_seconds=0.3) as server, connect(server, STRANGER) as silent:
        assert fetch(server, source=STRANGER) == (401, b"")
        assert fetch(server) == (200, BODY)
        assert rest(silent) == b""
    assert [(record.name, str(record.exc_info and record.exc_info[1])) for record in caplog.records] == [
        ("asyncio", "a bug")
    ] * 2


def test_past_all_connections_the_oldest_never_served_makes_room() -> None:
    with serving(connections=2) as server, connect(server, OTHER, GET) as first:
        assert answer(first) == (200, BODY)
        with connect(server, "127.0.0.3") as second, connect(server, "127.0.0.4", GET) as third:
            assert rest(second) == b""
            assert answer(third) == (200, BODY)
            with connect(server, "127.0.0.5") as refused:  # all are served now
                assert rest(refused) == b""
            first.sendall(GET)
            assert answer(first) == (200, BODY)


def test_each_user_of_an_address_has_limits_of_its_own() -> None:
    users: dict[int, str] = {}
    with serving(
        find_user=lambda sock: users[sock.getpeername()[1]], per_source=2, burst=3, requests_per_second=1
    ) as server:

        def by(user: str) -> socket.socket:
            sock = socket.socket()
            sock.bind(("127.0.0.1", 0))
            users[sock.getsockname()[1]] = user
            sock.connect(("127.0.0.1", server.port))
            return sock

        with by("a") as first, by("a") as second, by("a") as third, by("b") as other:
            assert rest(first) == b""
            for status in (200, 200, 200, 429):
                second.sendall(GET)
                assert answer(second)[0] == status
            other.sendall(GET)
            assert answer(other) == (200, BODY)
            third.sendall(GET)
            assert answer(third)[0] == 429


def test_1000_connections_of_one_source_do_not_slow_another_or_cost_memory_or_threads() -> None:
    with serving(requests_per_second=Limits().requests_per_second, burst=Limits().burst) as server:
        assert fetch(server)[0] == 200
        threads, slowest = threading.active_count(), 0.0
        crowd = []
        with peak_bytes() as peak:
            for number in range(1000):
                crowd.append(connect(server, STRANGER, b"GET / HTTP/1.1\r\nX: "))
                if number % 100 == 99:
                    began = time.monotonic()
                    assert fetch(server, source=OTHER) == (200, BODY)
                    slowest = max(slowest, time.monotonic() - began)
            # 1,000 client sockets of this very process are in it.
            assert peak() < 2 << 20
        assert slowest < 1
        assert threading.active_count() <= threads
        for sock in crowd:
            sock.close()
        until(lambda: fetch(server, source=STRANGER)[0] == 200)
