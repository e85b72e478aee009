"""DNS, what the engine opens, and the other nodes' clocks."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.tree import Tree
from tests.unit.nodes import heard, node, reading, report
from tests.unit.verdicts import expect

from sparkd.agent.cluster.peer_reader import clock_ahead
from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.peer_clocks import PeerClock, PeerClockFacts, PeerClocks
from sparkd.agent.preflight.checks.ports import Listeners, ListenersFacts
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node, Secret
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders


def pair_plan() -> LaunchPlan:
    recipe = load_recipe("deepseek-v4-flash-balanced", recipe_folders(Path("/"))).recipe
    return make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", 2, "enp1s0f0np0", ("rocep1s0f0",)))


KEY = {"env": (("VLLM_API_KEY", "x"),)}


@pytest.mark.parametrize(
    ("host", "changed", "level"),
    [
        ("--host=0.0.0.0", {}, Level.WARN),
        ("--host=::", {}, Level.WARN),
        ("--host=0:0::0", {}, Level.WARN),
        ("--host", {}, Level.WARN),
        ("--served-model-name=x", {}, Level.WARN),
        ("--host=0.0.0.0", KEY, Level.OK),
        ("--host=0.0.0.0", {"secrets": (Secret("VLLM_API_KEY", "/etc/sparkd/api.key"),)}, Level.OK),
        ("--api-key=x", {}, Level.OK),
        ("--host=10.0.0.1", {}, Level.OK),
        ("--host=127.0.0.1", {}, Level.OK),
        ("--host=spark1.lan", {}, Level.OK),
    ],
)
def test_an_api_on_all_addresses_wants_a_key(host: str, changed: dict[str, object], level: Level) -> None:
    plan = replace(pair_plan(), argv=("vllm", "serve", host), api_port=8123, **changed)
    facts = ListenersFacts((22,))
    verdict = Listeners(plan).judge(facts)
    expect(verdict, level, "port 8123")
    assert ("29501" in verdict.reason) is (level is Level.OK)
    assert Listeners(replace(plan, node=replace(plan.node, rank=1))).judge(facts).level is Level.OK
    alone = Listeners(replace(plan, node=replace(plan.node, cluster_size=1))).judge(facts)
    assert alone.level is level, "one node is as open"
    assert "29501" not in alone.reason


def test_what_listens_on_all_addresses_is_evidence(tree: Tree) -> None:
    tree.listening((22, 1), (9100, 2))
    check = Listeners(replace(pair_plan(), argv=("vllm", "serve", "--host", "10.0.0.1")))
    facts = check.probe(Host(tree.root))
    assert facts == ListenersFacts((22, 9100))
    assert check.judge(facts).level is Level.OK


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
    expect(PeerClocks(3).judge(PeerClockFacts((PeerClock("spark2", "10.0.0.2", ahead_seconds),))), level, words)


def test_nobody_heard_is_no_difference(tree: Tree) -> None:
    host = Host(tree.root)
    assert PeerClocks(2).judge(PeerClocks(2).probe(host)).reason == "no other node has been heard yet"
    assert PeerClocks(1).judge(PeerClocks(1).probe(host)).reason == "one node"


def test_clocks_are_those_that_a_living_agent_has_heard(tree: Tree) -> None:
    machine.heard(tree, 0, ahead_seconds=-40.0)
    host = Host(tree.root)
    assert PeerClocks(2).probe(host) == PeerClockFacts((PeerClock("spark2", "10.0.0.2", -40.0),))
    tree.process(machine.AGENT, "other", start_time=501)
    assert PeerClocks(2).probe(host).clocks == ()


@pytest.mark.parametrize("change", [{"contact": "silent"}, {"clock_ahead_seconds": None}])
def test_clocks_without_an_answer_or_a_date_are_not_judged(tree: Tree, change: dict[str, object]) -> None:
    machine.heard(tree, 0, ahead_seconds=-40.0)
    path = tree.root / "run/sparkd/report.json"
    known = json.loads(path.read_text())
    known["peers"][0].update(change)
    path.write_text(json.dumps(known))
    assert PeerClocks(2).probe(Host(tree.root)).clocks == ()


@pytest.mark.parametrize("text", ["", "{", '{"schema": 2}', "[" * 100_000])
def test_an_invalid_report_is_ignored(tree: Tree, text: str) -> None:
    tree.file("/run/sparkd/report.json", text)
    assert PeerClocks(2).probe(Host(tree.root)).clocks == ()


DATE = "Sun, 01 Nov 2026 08:00:00 GMT"
AT = 1793520000.0


@pytest.mark.parametrize(
    ("date", "now", "known", "ahead"),
    [
        pytest.param(DATE, AT + 0.5, None, 0.0, id="the same second"),
        pytest.param(DATE, AT - 3600, None, 3600.0, id="an hour ahead"),
        pytest.param(DATE, AT + 60, None, -60.0, id="a minute behind"),
        pytest.param(DATE, AT + 61.2, -60.0, -60.0, id="no real change"),
        pytest.param(DATE, AT + 70, -60.0, -70.0, id="a real change"),
        pytest.param("", AT, None, None, id="no date"),
        pytest.param("", AT, 3.0, 3.0, id="no date this time"),
        pytest.param("yesterday", AT, None, None, id="no date of HTTP"),
        pytest.param("Sun, 99 Nov 2026 08:00:00 GMT", AT, None, None, id="no day"),
        pytest.param("Sun, 01 Nov 99999999999999 08:00:00 GMT", AT, None, None, id="no year"),
    ],
)
def test_the_date_of_an_answer_gives_the_clock(date: str, now: float, known: float | None, ahead: float) -> None:
    assert clock_ahead(date, now, known) == ahead


def test_a_reader_compares_the_clocks() -> None:
    with node("127.0.0.2") as one:
        one.publish(report())
        with reading("127.0.0.2", one.port) as reader:
            heard(reader)
            found = reader.status.clock_ahead_seconds
    assert found is not None
    assert abs(found) <= 2
