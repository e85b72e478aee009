"""`sparkd fabric test`: two nodes of it on loopback, and what it says where it can't run."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import msgspec
import pytest
from tests.tree import Tree
from tests.unit.terminal import shown

from sparkd.cli import fabric
from sparkd.cluster import traffic
from sparkd.cluster.membership import Peer
from sparkd.cluster.traffic import RESULT, Listening, Measured, Measurer
from sparkd.host import Host
from sparkd.lib.errors import AwaitedError, BlockedError
from sparkd.measure.fabric import Facts, Pair, Port, Result

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
KEY = b"k" * 32
HEAD, WORKER = "127.0.0.1", "127.0.0.2"


def facts(node: str, address: str) -> Facts:
    return Facts(node, (Port("lo", address, 10_000, 9000),))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "SECONDS", 0.2)


@pytest.fixture
def worker(port: int) -> Iterator[list[Result]]:
    """What it got in the end."""
    got = list[Result]()

    def run() -> None:
        got.append(fabric.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD))

    thread = threading.Thread(target=run)
    thread.start()
    yield got
    thread.join()


def test_both_nodes_have_the_result(worker: list[Result], tree: Tree, port: int) -> None:
    host = Host(str(tree.root))
    result = fabric.measure(facts("spark1", HEAD), Peer(1, WORKER), port, lambda: (KEY,), host)
    while not worker:
        threading.Event().wait(0.01)
    assert worker == [result]
    (pair,) = result.pairs
    assert pair.measured is not None
    assert pair.measured.sent_gbps > 0.01
    assert result.ceiling_gbps > 0.01
    found = json.loads(fabric.as_json(result))
    assert (found["schema"], found["own"]["node"], len(found["verdicts"])) == (1, "spark1", 1)


def test_a_node_that_does_not_come_is_said(
    port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric, "WAIT_SECONDS", 1.0)
    with pytest.raises(BlockedError, match=f"{WORKER} does not take part: connection refused"):
        fabric.greet(Measurer(HEAD, WORKER, port, lambda: (KEY,)))
    assert capsys.readouterr().err.count("waits for") == 1
    with pytest.raises(BlockedError, match=f"{HEAD} did not come"):
        fabric.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD)


def test_a_port_that_another_program_has_is_said(port: int) -> None:
    with Listening().on({WORKER: ""}, port, lambda: (KEY,), b""), pytest.raises(AwaitedError, match="in use"):
        fabric.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"own": 1}', b"[" * 100_000])
def test_a_result_that_is_none_is_refused(port: int, body: bytes) -> None:
    def send() -> None:
        while True:
            try:
                Measurer(HEAD, WORKER, port, lambda: (KEY,)).request(RESULT, body)
                break
            except OSError:
                threading.Event().wait(0.02)

    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(BlockedError, match="is no result"):
        fabric.await_result(facts("spark2", WORKER), port, lambda: (KEY,), HEAD)


@pytest.mark.parametrize("said", [b"{}", b"\xff", b'{"node": "x", "ports": [{"address": 1}]}'])
def test_facts_that_are_none_are_refused(port: int, said: bytes) -> None:
    with Listening().on({WORKER: ""}, port, lambda: (KEY,), said), pytest.raises(BlockedError, match="same on both"):
        fabric.greet(Measurer(HEAD, WORKER, port, lambda: (KEY,)))


def test_another_key_is_said(port: int) -> None:
    with (
        Listening().on({WORKER: ""}, port, lambda: (b"o" * 32,), b"{}"),
        pytest.raises(BlockedError, match="cluster key"),
    ):
        fabric.greet(Measurer(HEAD, WORKER, port, lambda: (KEY,)))


def test_the_table_fits_into_80_columns_and_has_no_colours_of_the_other_node() -> None:
    own = Port("enP2p1s0f0np0", "10.0.0.1", 200_000, 9000)
    other = Port("\x1b[31mred", "10.0.0.2", 200_000, 9000)
    pairs = (Pair(own, other, Measured(12.86, 110.1, 48.2, 99.7)), Pair(own, own, None, "timed out"))
    result = Result(Facts("spark1", (own,)), Facts("\x1b[31mspark2", (other,)), 180.0, pairs)
    text = COLOURS.sub("", shown(fabric.render(result), NO_COLOR="1"))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "slow" in text
    assert "12.9" in text
    assert msgspec.json.decode(msgspec.json.encode(result), type=Result) == result
