"""Two nodes that test the fabric between them, on loopback; and the refusal where they can't."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from tests.machines.areas import healthy
from tests.tree import Tree
from tests.unit.plans import configured
from tests.unit.traffic_programs import Programs

from sparkd.base.cluster.membership import Peer
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError
from sparkd.tools.measure import fabric_test
from sparkd.tools.measure.fabric import FabricFacts, Pair, PortFacts, Result
from sparkd.tools.measure.traffic import RESULT, Measurer, receive_result
from sparkd.tools.measure.traffic_programs import IPERF3, TrafficError

KEY = b"k" * 32
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


def facts(node: str, address: str) -> FabricFacts:
    return FabricFacts(node, (PortFacts("lo", address, 10_000, 9000),))


@pytest.fixture
def worker(port: int) -> Iterator[list[Result]]:
    """The worker's results: one, once it has come."""
    results = list[Result]()

    def run() -> None:
        results.append(fabric_test.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD))

    thread = threading.Thread(target=run)
    thread.start()
    yield results
    thread.join()


def measure(port: int, host: Host, *addresses: str, seconds: float = 30.0) -> tuple[list[Result], list[BlockedError]]:
    peers = [Peer(number, address) for number, address in enumerate((*addresses, WORKER), 1)]
    return fabric_test.measure_peers(facts("spark1", HEAD), peers, port, lambda: (KEY,), host, seconds)


def refusal(port: int, seconds: float = 30.0) -> str:
    """Why nothing was measured, and the hint."""
    results, (failure,) = measure(port, Host(), seconds=seconds)
    assert not results
    return f"{failure.reason}{': ' * bool(failure.hint)}{failure.hint}"


def test_a_node_that_does_not_come_costs_no_result_of_the_others(
    worker: list[Result], programs: Programs, tree: Tree, port: int
) -> None:
    """Though it comes first: the others would be over before the head comes."""
    (result,), (failure,) = measure(port, Host(str(tree.root)), "127.0.0.3", seconds=1.0)
    assert result.other.node == "spark2"
    assert failure.reason == "127.0.0.3 does not take part: connection refused"


def test_both_nodes_have_the_result(worker: list[Result], programs: Programs, tree: Tree, port: int) -> None:
    host = Host(str(tree.root))
    (outcome,), failures = measure(port, host)
    assert not failures
    while not worker:
        threading.Event().wait(0.01)
    assert worker == [outcome]
    (pair,) = outcome.pairs
    assert pair.measured is not None
    assert round(pair.measured.sent_gbps, 1) == round(outcome.ceiling_gbps, 1) == 19.3


def test_a_worker_waits_until_the_head_may_have_measured_with_each_of_the_others(
    programs: Programs, tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy(tree, 1)
    tree.file("/etc/sparkd/cluster.key", f"{KEY.hex()}\n", mode=0o600)
    nodes = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    with pytest.raises(BlockedError, match="can't be had"):  # the address is the tree's alone
        fabric_test.measure_all(configured(cluster={"nodes": nodes}), Host(tree.root))
    assert "waits for 10.0.0.1, for 240 s" in capsys.readouterr().err


def test_a_node_that_does_not_come_is_named_on_both_sides(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(port, 1.0).startswith(f"{WORKER} does not take part: connection refused")
    assert capsys.readouterr().err.count("waits for") == 1
    with pytest.raises(BlockedError, match=f"{HEAD} did not come"):
        fabric_test.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD, 1.0)


@contextmanager
def listening(port: int, body: bytes, key: bytes = KEY) -> Iterator[None]:
    """A worker whose report of its ports is `body`."""

    def run() -> None:
        asyncio.run(receive_result({WORKER: ""}, port, lambda: (key,), body, 30))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        send(port, "figures", key)
        thread.join(30)


def send(port: int, result: str, key: bytes = KEY) -> None:
    """Send a result to the worker as soon as it listens."""
    while True:
        try:
            Measurer(HEAD, WORKER, port, lambda: (key,)).request(f"{RESULT}?{result}")
            break
        except TrafficError:
            threading.Event().wait(0.02)


def test_a_port_that_another_program_has_is_refused(port: int) -> None:
    with socket.create_server((WORKER, port)), pytest.raises(BlockedError, match="in use"):
        fabric_test.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD)


@pytest.mark.parametrize("result", ["W10=", "eyJvd24iOiAxfQ==", "W1tb" * 10_000, "x", "%ff"])
def test_a_result_that_is_none_is_refused(port: int, result: str) -> None:
    threading.Thread(target=send, args=(port, result), daemon=True).start()
    with pytest.raises(BlockedError, match="is no result"):
        fabric_test.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD)


@pytest.mark.parametrize("body", [b"{}", b"\xff", b'{"node": "x", "ports": [{"address": 1}]}'])
def test_facts_that_are_none_are_refused(port: int, body: bytes) -> None:
    with listening(port, body):
        assert "same on both" in refusal(port)


def test_another_key_is_refused_with_its_file(port: int) -> None:
    with listening(port, b"{}", b"o" * 32):
        assert "cluster.key" in refusal(port)


def test_an_agent_that_runs_there_is_waited_for_and_named(port: int) -> None:
    with listening(port, b""):
        assert f"does not take part: its agent has port {port}" in refusal(port, 1.0)


def test_iperf3_that_does_not_work_here_ends_the_test(programs: Programs, tree: Tree, port: int) -> None:
    programs.write(IPERF3, "echo no")
    with listening(port, msgspec.json.encode(facts("spark2", WORKER))):
        assert re.search(r"does not work on this node: .* ends in: no", refusal(port))


def test_a_pair_without_figures_has_the_reason(port: int) -> None:
    near, far = facts("spark1", HEAD).ports[0], facts("spark2", WORKER).ports[0]
    assert fabric_test.measure_pair(near, far, port, lambda: (KEY,)) == Pair(near, far, None, "Connection refused")
