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

from sparkd.host import Host, resolver
from sparkd.host.files import Files
from sparkd.launch.plan import LaunchPlan, Node, Secret
from sparkd.launch.planner import make_plan
from sparkd.preflight.check import Level
from sparkd.preflight.listeners import Listeners, ListenersFacts
from sparkd.preflight.peer_clock import PeerClock, PeerClockFacts, PeerClocks
from sparkd.preflight.resolver import NameServer, Resolver, ResolverFacts
from sparkd.recipes.load import load
from sparkd.recipes.lookup import folders
from sparkd.report import clock
from sparkd.settings import Settings

DNS = Resolver(("10.0.0.2",))


def servers(*answers: bool | None) -> ResolverFacts:
    return ResolverFacts(tuple(NameServer(f"192.168.1.{at}", said) for at, said in enumerate(answers, 1)))


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(servers(), Level.OK, "none is needed", id="no server"),
        pytest.param(servers(True), Level.OK, "192.168.1.1 answers", id="it answers"),
        pytest.param(servers(False, True), Level.OK, "192.168.1.2 answers", id="one of them does"),
        pytest.param(servers(None), Level.OK, "not asked: 192.168.1.1", id="nobody was asked"),
        pytest.param(servers(False), Level.WARN, "(192.168.1.1): each start takes about 20 s longer", id="silent"),
        pytest.param(servers(False, False), Level.WARN, "(192.168.1.1, 192.168.1.2)", id="all silent"),
    ],
)
def test_a_silent_dns_server_costs_every_start(facts: ResolverFacts, level: Level, words: str) -> None:
    verdict = DNS.judge(facts)
    assert verdict.level is level
    assert words in verdict.reason


def test_a_start_waits_for_the_name_of_every_node() -> None:
    assert "about 80 s" in Resolver(tuple(f"10.0.0.{rank}" for rank in range(2, 9))).judge(servers(False)).reason


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
    assert resolver.servers(Files(str(tree.root))) == named


def test_the_resolvers_probe_reads_the_machine(tree: Tree) -> None:
    machine.healthy(tree, 0)
    assert DNS.probe(Host(tree.root)) == ResolverFacts((NameServer("192.168.1.1", True),))
    assert Resolver(()).probe(Host(tree.root)) == ResolverFacts(())


@pytest.mark.parametrize("text", ["[]", "{"])
def test_a_record_of_answers_that_is_none_is_an_error_of_reading(tree: Tree, text: str) -> None:
    tree.file("/etc/resolv.conf", "nameserver 10.1.1.1\n")
    tree.file("/.sparkd/resolver.json", text)
    with pytest.raises(ValueError, match=r"no object|Expecting"):
        DNS.probe(Host(tree.root))


@contextmanager
def dns_server(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Answers each question with its id and this; its port, and what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))

        def serve() -> None:
            question, sender = sock.recvfrom(4096)
            asked.append(question)
            if answer:
                sock.sendto(question[:2] + answer, sender)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1], asked
        thread.join()


def test_a_server_is_asked_for_the_name_of_a_node() -> None:
    with dns_server(b"\x81\x83") as (port, asked):
        assert resolver.ask(("127.0.0.1",), "10.0.0.2", port) == {"127.0.0.1": True}
    name = b"\x012\x010\x010\x0210\x07in-addr\x04arpa\0"
    assert asked[0][2:] == b"\x01\0\0\1\0\0\0\0\0\0" + name + b"\0\x0c\0\1"


@pytest.mark.parametrize(
    ("address", "first_label"), [("::ffff:10.0.0.2", b"\x012"), ("fd00::a", b"\x01a"), ("fe80::a%lo", b"\x01a")]
)
def test_every_address_has_a_name_to_ask_for(address: str, first_label: bytes) -> None:
    with dns_server(b"\x81\x83") as (port, asked):
        assert resolver.ask(("127.0.0.1",), address, port) == {"127.0.0.1": True}
    assert asked[0][12:14] == first_label


def test_a_server_that_keeps_silent_does_not_answer() -> None:
    with dns_server(b"") as (port, _):
        assert resolver.ask(("127.0.0.1",), "10.0.0.2", port) == {"127.0.0.1": False}


def pair_plan() -> LaunchPlan:
    recipe = load("deepseek-v4-flash-balanced", folders(Path("/"))).recipe
    return make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", 2, "enp1s0f0np0", ("rocep1s0f0",)))


def test_the_engines_ports_are_those_of_the_plan() -> None:
    plan = pair_plan()
    assert Listeners.of(plan) == Listeners("0.0.0.0", 8000, 29501, has_key=False, serves=True, nodes=2)
    keyed = replace(plan, secrets=(Secret("VLLM_API_KEY", "/etc/sparkd/api.key"),))
    assert Listeners.of(keyed).has_key
    assert Listeners.of(replace(plan, env=(("VLLM_API_KEY", "x"),))).has_key
    assert Listeners.of(replace(plan, argv=("vllm", "serve", "--api-key=x"))).has_key
    assert Listeners.of(replace(plan, argv=("vllm", "serve", "--host", "10.0.0.1"))).host == "10.0.0.1"
    assert Listeners.of(replace(plan, argv=("vllm", "serve", "--host"))).host == ""


@pytest.mark.parametrize(
    ("host", "has_key", "level"),
    [
        ("0.0.0.0", False, Level.WARN),
        ("::", False, Level.WARN),
        ("0:0::0", False, Level.WARN),
        ("", False, Level.WARN),
        ("0.0.0.0", True, Level.OK),
        ("10.0.0.1", False, Level.OK),
        ("127.0.0.1", False, Level.OK),
        ("spark1.lan", False, Level.OK),
    ],
)
def test_an_api_on_all_addresses_wants_a_key(host: str, has_key: bool, level: Level) -> None:
    check = Listeners(host, 8123, 29501, has_key=has_key, serves=True, nodes=2)
    verdict = check.judge(ListenersFacts((22,)))
    assert verdict.level is level
    assert "port 8123" in verdict.reason
    assert replace(check, serves=False).judge(ListenersFacts(())).level is Level.OK
    alone = replace(check, nodes=1).judge(ListenersFacts(()))
    assert alone.level is level, "one node is as open"
    assert "29501" not in alone.reason


def test_what_listens_on_all_addresses_is_evidence(tree: Tree) -> None:
    tree.listening((22, 1), (9100, 2))
    check = Listeners("10.0.0.1", 8000, 29501, has_key=False, serves=True, nodes=2)
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
    verdict = PeerClocks(3).judge(PeerClockFacts((PeerClock("spark2", "10.0.0.2", ahead_seconds),)))
    assert verdict.level is level
    assert words in verdict.reason


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
def test_clocks_of_who_is_silent_or_tells_no_date_are_not_judged(tree: Tree, change: dict[str, object]) -> None:
    machine.heard(tree, 0, ahead_seconds=-40.0)
    path = tree.root / "run/sparkd/report.json"
    known = json.loads(path.read_text())
    known["peers"][0].update(change)
    path.write_text(json.dumps(known))
    assert PeerClocks(2).probe(Host(tree.root)).clocks == ()


@pytest.mark.parametrize("text", ["", "{", '{"schema": 2}', "[" * 100_000])
def test_a_report_that_is_none_tells_nothing(tree: Tree, text: str) -> None:
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
def test_a_clock_is_told_by_the_date_of_an_answer(date: str, now: float, known: float | None, ahead: float) -> None:
    assert clock.ahead(date, now, known) == ahead


def test_a_stamp_reads_back() -> None:
    assert clock.stamp(AT + 0.9) == DATE


def test_a_reader_compares_the_clocks() -> None:
    with node("127.0.0.2") as one:
        one.tell(report())
        with reading("127.0.0.2", one.port) as reader:
            heard(reader)
            found = reader.snapshot.as_peer().clock_ahead_seconds
    assert found is not None
    assert abs(found) <= 2
