"""The HTTP of a traffic test: for the node that signs with the key alone."""

import asyncio
import re
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from tests.unit.traffic_programs import Programs
from tests.unit.wire import relay

from sparkd.agent.cluster.client import UnsignedError
from sparkd.base.cluster.auth import new_nonce, sign_request
from sparkd.tools.measure.traffic import PORTS, RDMA, RESULT, TCP, Measurer, measure_ceiling, receive_result
from sparkd.tools.measure.traffic_programs import IB_WRITE_BW, IPERF3, TrafficError

HERE, THERE = "127.0.0.1", "127.0.0.2"
KEY, OTHER = b"k" * 32, b"o" * 32
HCA = "rocep1s0f0"


def measurer(port: int, *keys: bytes, to: str = THERE) -> Measurer:
    return Measurer(HERE, to, port, lambda: keys or (KEY,))


def request_when_it_listens(port: int, path: str, body: bytes = b"") -> bytes:
    deadline = time.monotonic() + 10
    while True:
        try:
            return measurer(port).request(path, body)
        except TrafficError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextmanager
def listening_node(port: int, addresses: Mapping[str, str] = {THERE: ""}) -> Iterator[list[str | None]]:
    """The other node listens for the time of the block; the results that it gets."""
    results = list[str | None]()

    def run() -> None:
        results.append(asyncio.run(receive_result(addresses, port, lambda: (KEY,), b"facts", 30)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        request_when_it_listens(port, PORTS)
        yield results
    finally:
        while thread.is_alive():  # by its own limit, 30 s
            with suppress(TrafficError):  # where the test has sent its result, this node may be about to end
                measurer(port).request(RESULT, b"figures")
            thread.join(0.02)


def test_both_directions_and_the_round_trips_are_measured(port: int, programs: Programs) -> None:
    with listening_node(port):
        measured = measurer(port).measure()
    assert round(measured.sent_gbps, 1) == 19.3
    assert round(measured.received_gbps, 1) == 19.3
    assert 1 < measured.round_trip_us <= measured.round_trip_99_us < 1e6
    assert round(measure_ceiling(), 1) == 19.3


def test_each_address_listens_and_what_it_started_ends_with_the_next_run_and_at_the_end(
    port: int, programs: Programs
) -> None:
    second = "127.0.0.3"
    with listening_node(port, {THERE: "", second: HCA}):
        measurer(port).request(TCP)
        first = programs.pid(IPERF3)
        measurer(port, to=second).request(RDMA)
        rdma = programs.pid(IB_WRITE_BW)
        measurer(port).request(TCP)
        assert not programs.lives(first)
        assert programs.lives(rdma, 0), "of another address"
        last = programs.pid(IPERF3)
    assert not any(programs.lives(pid) for pid in (rdma, last))


def test_without_a_device_there_rdma_is_not_measured(port: int, programs: Programs) -> None:
    with listening_node(port):
        assert measurer(port).measure_rdma(HCA) is None
    assert not (programs.folder / f"{IB_WRITE_BW}.pid").exists()


def test_facts_are_sent_and_a_large_result_is_taken(port: int) -> None:
    with listening_node(port) as results:
        assert measurer(port).request(PORTS) == b"facts"
        assert measurer(port).request("/report") == b"", "that is an agent's"
        measurer(port).request(RESULT, b"figures" * 4000)
    assert [urlsafe_b64decode(result or "") for result in results] == [b"figures" * 4000]


@pytest.mark.parametrize("keys", [(OTHER, KEY), (KEY, OTHER)])
def test_any_key_of_the_file_is_good(port: int, keys: tuple[bytes, ...]) -> None:
    with listening_node(port):
        assert measurer(port, *keys).request(PORTS) == b"facts"


def test_another_key_is_refused(port: int) -> None:
    with listening_node(port), pytest.raises(UnsignedError, match="refuses this node"):
        measurer(port, OTHER).request(PORTS)


def request(path: str, challenge: str, *, key: bytes = KEY, to: str = THERE, signed_path: str = "") -> bytes:
    nonce = new_nonce()
    signature = sign_request(key, challenge, nonce, to, signed_path or path)
    lines = (f"GET {path} HTTP/1.1", "Host: a", f"Sparkd-Nonce: {nonce}", f"Sparkd-Signature: {signature}", "", "")
    return "\r\n".join(lines).encode()


UNSIGNED = f"GET {TCP} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@pytest.mark.parametrize(
    "make_request",
    [
        lambda _: UNSIGNED,
        lambda _: request(TCP, "0" * 32),  # of another connection
        partial(request, TCP, key=OTHER),
        partial(request, TCP, to="10.0.0.9"),  # for another node
        partial(request, TCP, signed_path=PORTS),
        partial(request, f"{RESULT}?ZXZpbA==", signed_path=f"{RESULT}?Z29vZA=="),
    ],
)
def test_an_unsigned_request_gets_401_and_starts_nothing(
    port: int, programs: Programs, make_request: Callable[[str], bytes]
) -> None:
    with listening_node(port) as results:
        with relay(THERE, port) as pass_on:
            challenge = re.search(rb"(?i)\r\nwww-authenticate: ([0-9a-f]{32})\r\n", pass_on(UNSIGNED))
            assert challenge is not None
            answer = pass_on(make_request(challenge[1].decode()))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.endswith(b"\r\n\r\n")
        assert measurer(port).request(PORTS) == b"facts"
        assert results == []
    assert not (programs.folder / f"{IPERF3}.pid").exists()


def test_nobody_there_is_an_error(port: int) -> None:
    with pytest.raises(TrafficError, match=r"^connection refused$"):
        measurer(port).request(PORTS)


def test_a_port_that_is_taken_is_an_error(port: int) -> None:
    with listening_node(port), pytest.raises(OSError, match="in use"):
        asyncio.run(receive_result({THERE: ""}, port, lambda: (KEY,), b"", 1))


def test_a_node_whose_measurement_ends_in_the_middle_does_not_wait_as_long_as_for_its_begin(port: int) -> None:
    began, thread = time.monotonic(), threading.Thread(target=request_when_it_listens, args=(port, PORTS))
    thread.start()
    assert asyncio.run(receive_result({THERE: ""}, port, lambda: (KEY,), b"facts", 60, pause_seconds=0.5)) is None
    thread.join()
    assert time.monotonic() - began < 30
