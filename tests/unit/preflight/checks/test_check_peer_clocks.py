"""The other nodes' clocks, judged by the report of a living agent."""

import json

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.tree import Tree
from tests.unit.plans import HEAD, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.peer_clocks import PeerClock, PeerClockFacts, PeerClocks
from sparkd.base.host import Host

PAIR = PeerClocks(plan(HEAD))
THREE, ALONE = (replace(PAIR, plan=replace(PAIR.plan, node=replace(HEAD, cluster_size=size))) for size in (3, 1))


@pytest.mark.parametrize(
    ("ahead_seconds", "level", "words"),
    [
        (0.0, Level.OK, "1 of 2 heard"),
        (5.0, Level.OK, "within 5 s"),
        (-5.0, Level.OK, "within 5 s"),
        (6.0, Level.WARN, "the clock of spark2 (10.0.0.2) is 6 s ahead of this node's"),
        (-7200.0, Level.WARN, "7200 s behind this node's"),
    ],
)
def test_clocks_that_differ_are_a_warning(ahead_seconds: float, level: Level, words: str) -> None:
    expect(THREE.judge(PeerClockFacts((PeerClock("spark2", "10.0.0.2", ahead_seconds),))), level, words)


def test_without_another_node_heard_no_clock_is_compared(tree: Tree) -> None:
    host = Host(tree.root)
    assert PAIR.judge(PAIR.probe(host)).reason == "no other node has been heard yet"
    assert ALONE.judge(ALONE.probe(host)).reason == "one node"


def test_clocks_are_those_that_a_living_agent_has_heard(tree: Tree) -> None:
    machine.heard(tree, 0, ahead_seconds=-40.0)
    host = Host(tree.root)
    assert PAIR.probe(host) == PeerClockFacts((PeerClock("spark2", "10.0.0.2", -40.0),))
    tree.process(machine.AGENT, "other", start_time=501)
    assert PAIR.probe(host).clocks == ()


@pytest.mark.parametrize("change", [{"contact": "silent"}, {"clock_ahead_seconds": None}])
def test_clocks_without_an_answer_or_a_date_are_not_judged(tree: Tree, change: dict[str, object]) -> None:
    machine.heard(tree, 0, ahead_seconds=-40.0)
    path = tree.root / "run/sparkd/report.json"
    kept = json.loads(path.read_text())
    kept["peers"][0].update(change)
    path.write_text(json.dumps(kept))
    assert PAIR.probe(Host(tree.root)).clocks == ()


@pytest.mark.parametrize("text", ["", "{", '{"schema": 2}', "[" * 100_000])
def test_an_invalid_report_is_ignored(tree: Tree, text: str) -> None:
    tree.file("/run/sparkd/report.json", text)
    assert PAIR.probe(Host(tree.root)).clocks == ()
