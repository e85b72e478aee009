"""DNS, what the engine opens, and the other nodes' clocks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.tree import Tree
from tests.unit.nodes import heard, node, reading, report
from tests.unit.verdicts import expect

from sparkd.cluster.client import clock_ahead
from sparkd.config import Settings
from sparkd.host import Host, datagrams
from sparkd.host.files import Files
from sparkd.plan.build import make_plan
from sparkd.plan.model import LaunchPlan, Node, Secret
from sparkd.preflight.check import Level
from sparkd.preflight.checks.peers import NameServer, PeerClock, PeerClockFacts, PeerClocks, Resolver, ResolverFacts
from sparkd.preflight.checks.ports import Listeners, ListenersFacts
from sparkd.recipes.loader import load_recipe, recipe_folders

DNS = Resolver(("10.0.0.2",))


def servers(*answers: bool | None) -> ResolverFacts:
    return ResolverFacts(tuple(NameServer(f"192.168.1.{at}", said) for at, said in enumerate(answers, 1)))


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(servers(), Level.OK, "none is needed", id="no server"),
        pytest.param(servers(True), Level.OK, "192.168.1.1 answers", id="it answers"),
        pytest.param(servers(False, True), Level.OK, "192.168.1.2 answers", id="one of them does"),
        pytest.param(servers(None), Level.OK, "not queried: 192.168.1.1", id="no query"),
        pytest.param(servers(False), Level.WARN, "(192.168.1.1): each start takes about 20 s longer", id="silent"),
        pytest.param(servers(False, False), Level.WARN, "(192.168.1.1, 192.168.1.2)", id="all silent"),
    ],
)
def test_a_silent_dns_server_costs_every_start_for_each_node(facts: ResolverFacts, level: Level, words: str) -> None:
    expect(DNS.judge(facts), level, words)
    eight = Resolver(tuple(f"10.0.0.{rank}" for rank in range(2, 9)))
    assert ("about 80 s" in eight.judge(facts).reason) is (level is Level.WARN)


@pytest.mark.parametrize(
    ("config", "upstream", "named"),
    [
        (None, None, ()),
        ("", None, ()),
        ("nameserver 10.1.1.1\nnameserver fd00::1\n", None, ("10.1.1.1", "fd00::1")),
        ("nameserver 127.0.0.53\n", "nameserver 10.1.1.1\n", ("10.1.1.1",)),
        ("nameserver 127.0.0.53\n", "# none\n", ("127.0.0.53",)),
        ("nameserver 127.0.0.53\n", None, ("127.0.0.53",)),
        ("nameserver 127.0.0.53\nnameserver 10.2.2.2\n", "nameserver 10.1.1.1\n", ("127.0.0.53", "10.2.2.2")),
        ("nameserver\nnameserver here\n#nameserver 10.1.1.1\n\0\nserver 1.1.1.1\n", None, ()),
        ("".join(f"nameserver 10.1.1.{at}\n" for at in range(9)), None, ("10.1.1.0", "10.1.1.1", "10.1.1.2")),
        ("nameserver 10.1.1.1\nnameserver 10.1.1.1\n", None, ("10.1.1.1",)),
    ],
)
def test_servers_are_those_that_a_container_gets(
    tree: Tree, config: str | None, upstream: str | None, named: tuple[str, ...]
) -> None:
    for path, text in (("/etc/resolv.conf", config), ("/run/systemd/resolve/resolv.conf", upstream)):
        if text is not None:
            tree.file(path, text)
    assert datagrams.read_servers(Files(str(tree.root))) == named


def test_the_resolvers_probe_reads_the_machine(tree: Tree) -> None:
    machine.healthy(tree, 0)
    assert DNS.probe(Host(tree.root)) == ResolverFacts((NameServer("192.168.1.1", True),))
    assert Resolver(()).probe(Host(tree.root)) == ResolverFacts(())


@pytest.mark.parametrize("text", ["[]", "{"])
def test_a_record_of_answers_that_is_none_is_an_error_of_reading(tree: Tree, text: str) -> None:
    tree.file("/etc/resolv.conf", "nameserver 10.1.1.1\n")
    tree.file("/.sparkd/resolver.json", text)
    with pytest.raises(ValueError, match=r"resolver\.json"):
        DNS.probe(Host(tree.root))


@contextmanager
def dns_server(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Answers each query with its id and this; its port, and the queries."""
    queries: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            question, sender = sock.recvfrom(4096)
            queries.append(question)
            if answer:
                sock.sendto(question[:2] + answer, sender)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1], queries
        thread.join()


def test_the_query_is_a_nodes_name() -> None:
    with dns_server(b"\x81\x83") as (port, queries):
        assert datagrams.query_network(("127.0.0.1",), "10.0.0.2", port) == {"127.0.0.1": True}
    name = b"\x012\x010\x010\x0210\x07in-addr\x04arpa\0"
    assert queries[0][2:] == b"\x01\0\0\1\0\0\0\0\0\0" + name + b"\0\x0c\0\1"


@pytest.mark.parametrize(
    ("address", "first_label"), [("::ffff:10.0.0.2", b"\x012"), ("fd00::a", b"\x01a"), ("fe80::a%lo", b"\x01a")]
)
def test_every_address_has_a_name_to_query(address: str, first_label: bytes) -> None:
    with dns_server(b"\x81\x83") as (port, queries):
        assert datagrams.query_network(("127.0.0.1",), address, port) == {"127.0.0.1": True}
    assert queries[0][12:14] == first_label


def test_a_server_that_keeps_silent_does_not_answer() -> None:
    with dns_server(b"") as (port, _):
        assert datagrams.query_network(("127.0.0.1",), "10.0.0.2", port) == {"127.0.0.1": False}


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
