"""When a silent node's power is cut: over trees of files, and a program that only notes how it was called."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings
from tests.unit.http_receivers import receiver
from tests.unit.node_reports import WORKER
from tests.unit.nodes import until

from sparkd.agent.daemon.power import APART_SECONDS, LOOK_SECONDS, PAUSE_SECONDS, PowerWatch, WatchedNode, advance
from sparkd.base.config import Notify
from sparkd.base.lib.main_loop import SIGNALS
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, Phase

PROGRAM, STATE, WATCH = "/usr/local/sbin/plug", "/var/lib/sparkd/power.json", "/run/sparkd/private/power.json"
MINUTES = 5
"""supervise.power_after_minutes: the fewest that it takes."""
LONG_AGO = "2026-01-01T00:00:00+00:00"
SERVING = replace(WORKER, phase=Phase.SERVING, peers=())
GATEWAY = "192.168.1.1"
ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
wlan0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
bond0\t0000007F\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
"""


def lan(rank: int) -> str:
    return f"192.168.1.{11 + rank}"


class Node:
    """One of a group, that looks every ten seconds of a clock of its own."""

    def __init__(self, under_test: AgentUnderTest, count: int) -> None:
        self.under_test, self.count = under_test, count
        self.tree = Tree(Path(under_test.agent.host.files.root))
        self.now = 1000.0
        self.watch = PowerWatch(under_test.agent)
        self.gone = set[str]()
        """Addresses whose kernels do not answer."""
        self.unlisted = set[str]()
        """Addresses of which this kernel knows nothing."""
        self.tree.file("/proc/net/route", ROUTES)
        self.link(carrier=True)
        self.tree.folder("/var/lib/sparkd")
        self.program('echo "$SILENT_NODE $*" >>"$(dirname "$0")/calls"')
        for rank in self.ranks:
            self.set_contact(rank, Contact.ANSWERS)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.under_test.agent.monitor.readers)

    def link(self, *, carrier: bool) -> None:
        self.tree.file("/sys/class/net/bond0/flags", "0x1003\n")
        self.tree.file("/sys/class/net/bond0/carrier", f"{carrier:d}\n")

    def program(self, *lines: str, mode: int = 0o755) -> None:
        self.tree.file(PROGRAM, "\n".join(("#!/bin/sh", *lines)) + "\n", mode)

    def set_contact(self, rank: int, contact: Contact, report: NodeReport | None = SERVING, reason: str = "") -> None:
        address = addresses(self.count)[rank]
        if report is not None:
            report = replace(report, rank=rank, address=address, lan_address=report.lan_address or lan(rank))
        gone = reason.startswith("this node's own address")
        status = PeerStatus(address, rank, contact, LONG_AGO, report, said=reason, own_address_gone=gone)
        self.under_test.agent.monitor.readers[rank].status = status

    def hang(self, rank: int) -> None:
        self.set_contact(rank, Contact.SILENT)
        self.gone |= {addresses(self.count)[rank], lan(rank)}

    def look(self, seconds: float = LOOK_SECONDS) -> None:
        self.now += seconds
        named = [*addresses(self.count), *map(lan, range(self.count)), GATEWAY]
        listed = [address for address in named if address not in self.unlisted]
        states = {address: "0x0" if address in self.gone else "0x2" for address in listed}
        rows = (f"{address} 0x1 {state} 00:00:00:00:00:01 * bond0\n" for address, state in states.items())
        self.tree.file("/proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + "".join(rows))
        self.tree.file("/proc/uptime", f"{self.now} 0.0\n")
        self.watch.look()

    def look_for(self, minutes: float) -> None:
        for _ in range(round(minutes * 60 / LOOK_SECONDS)):
            self.look()

    @property
    def calls(self) -> list[str]:
        path = self.tree.root / "usr/local/sbin/calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def refusals(self) -> list[str]:
        lines = (line for line in self.under_test.events.lines if line.startswith("power.command.refused"))
        return [line.partition("reason=")[2].partition(" hint=")[0] for line in lines]


@contextmanager
def node_of(tree: Tree, port: int, rank: int, count: int) -> Iterator[Node]:
    configured = settings(addresses(count), port)
    with agent_under_test(tree, rank, configured) as under_test:
        changes = {"power_command": (PROGRAM, "cycle", "two words"), "power_after_minutes": MINUTES}
        under_test.remake(
            settings=configured.model_copy(update={"supervise": configured.supervise.model_copy(update=changes)})
        )
        yield Node(under_test, count)


@pytest.fixture
def node(tree: Tree, port: int) -> Iterator[Node]:
    """The head of a pair."""
    with node_of(tree, port, 0, 2) as node:
        yield node


def test_the_program_is_run_for_a_node_that_hangs_and_once_in_an_hour(node: Node) -> None:
    node.look()
    node.look()
    node.hang(1)
    node.look_for(MINUTES - 0.5)
    assert node.calls == []
    node.look_for(1)
    assert node.calls == ["127.0.0.2 cycle two words"]
    [started] = [line for line in node.under_test.events.lines if line.startswith("power.command.started")]
    assert "node=127.0.0.2" in started and "silent_seconds=3" in started
    assert any("power.command.ended" in line and "exit code 0" in line for line in node.under_test.events.lines)
    kept = json.loads((node.tree.root / STATE[1:]).read_text())
    assert kept["at"]["127.0.0.2"] == pytest.approx(time.time(), abs=60)
    node.look_for(70)
    assert len(node.calls) == 1, "a person's, until it reports again"
    node.gone.clear()
    node.set_contact(1, Contact.ANSWERS)
    assert len(calls_after_silence(node)) == 1
    [refusal] = node.refusals
    assert refusal.startswith("it had that power cut ")
    assert refusal.endswith(" ago, and does so once in 1 h 0 min at most")
    node.tree.file(STATE, json.dumps({"schema": 1, "at": {"127.0.0.2": time.time() - APART_SECONDS - 1}}))
    node.look()
    node.look()
    assert len(node.calls) == 2


def calls_after_silence(node: Node, minutes: float = MINUTES + 1) -> list[str]:
    """What is run for the other node of a pair that answered, and then is silent for longer than it must be."""
    node.look()
    node.hang(1)
    node.look_for(minutes)
    return node.calls


def test_the_message_is_sent_before_and_waits_for_another_look(node: Node) -> None:
    with receiver() as received:
        node.tree.file("/etc/sparkd/webhook", received.url, 0o600)
        changed = node.under_test.agent.settings.model_copy(
            update={"notify": Notify(webhook_file="/etc/sparkd/webhook")}
        )
        node.watch = PowerWatch(node.under_test.remake(settings=changed))
        assert calls_after_silence(node, MINUTES) == []
        [body] = received.bodies
        assert "127.0.0.2 has been silent for 5 min, and sparkd has its power cut by" in json.loads(body)["text"]
        node.set_contact(1, Contact.ANSWERS)  # it was slow
        node.gone.clear()
        node.look()
        assert node.calls == []
        node.hang(1)
        node.look_for(MINUTES)
        assert node.calls == [] and len(received.bodies) == 2
        node.look()
    assert len(node.calls) == 1


@pytest.mark.parametrize("address", ["127.0.0.2", lan(1)])
def test_a_kernel_that_answers_on_any_network_keeps_its_power(node: Node, address: str) -> None:
    """As behind a cut cable, or with an agent that hangs, or a firewall."""
    node.look()
    node.set_contact(1, Contact.SILENT)
    node.gone = {"127.0.0.2", lan(1)} - {address}
    node.look_for(3 * MINUTES)
    assert node.calls == []
    node.gone.add(address)
    node.look_for(MINUTES + 1)
    assert len(node.calls) == 1


@pytest.mark.parametrize("address", ["127.0.0.2", lan(1)])
def test_a_kernel_of_which_this_one_knows_nothing_may_answer(node: Node, address: str) -> None:
    """As where any user of this node fills the table of its neighbours, or this node has left that network."""
    node.look()
    node.unlisted.add(address)
    assert calls_after_hang(node) == []
    why = f"this kernel's table of neighbours has no {address}: ip neigh"
    assert node.refusals == [f"whether it or this node is cut off is unknown: {why}"]


def test_a_node_whose_other_address_is_on_the_fabric_too_keeps_its_power(node: Node) -> None:
    node.tree.file("/proc/net/route", ROUTES.replace("wlan0", "bond0"))
    assert calls_after_silence(node) == []
    assert node.refusals == ["whether it or this node is cut off is unknown: on no second network did it answer before"]


def no_carrier(node: Node) -> None:
    node.link(carrier=False)


def no_interface(node: Node) -> None:
    (node.tree.root / "sys/class/net/bond0/carrier").unlink()


def no_gateway(node: Node) -> None:
    node.gone.add(GATEWAY)


def no_address(node: Node) -> None:
    node.set_contact(1, Contact.SILENT, reason="this node's own address 127.0.0.1 is gone")


@pytest.mark.parametrize(
    ("cut", "why"),
    [
        (no_carrier, "bond0 has no carrier"),
        (no_interface, "bond0 has no carrier"),
        (no_gateway, "neither another node nor the gateway answers"),
        (no_address, "this node's own address 127.0.0.1 is gone"),
    ],
)
def test_where_this_node_may_be_cut_off_nothing_is_run_and_the_silence_begins_after_it(
    node: Node, cut: Callable[[Node], None], why: str
) -> None:
    node.look()
    node.hang(1)
    node.look_for(MINUTES - 1)
    cut(node)
    node.look_for(3)
    assert node.calls == []
    assert node.refusals == [f"whether it or this node is cut off is unknown: {why}"]
    node.link(carrier=True)
    node.gone.discard(GATEWAY)
    node.hang(1)
    node.look_for(MINUTES - 0.5)
    assert node.calls == []
    node.look_for(1)
    assert len(node.calls) == 1


@pytest.mark.parametrize("lan_address", ["192.168.1.77", "10.9.9.9", "spark2.example", "::1", "999.1.1.1", "²5.1.1.1"])
def test_a_node_that_no_second_network_has_shown_keeps_its_power(node: Node, lan_address: str) -> None:
    node.set_contact(1, Contact.ANSWERS, replace(SERVING, lan_address=lan_address))
    assert calls_after_silence(node) == []
    assert node.refusals == ["whether it or this node is cut off is unknown: on no second network did it answer before"]


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.STOPPED, Phase.FAILED])
def test_a_node_that_reported_its_end_keeps_its_power(node: Node, phase: Phase) -> None:
    node.look()
    node.set_contact(1, Contact.ANSWERS, replace(SERVING, phase=phase))
    node.look()
    node.hang(1)
    node.look_for(3 * MINUTES)
    assert node.calls == []


def test_a_node_that_ended_between_two_looks_keeps_its_power(node: Node) -> None:
    node.look()
    node.hang(1)
    node.set_contact(1, Contact.SILENT, replace(SERVING, phase=Phase.STOPPING))
    node.look_for(3 * MINUTES)
    assert node.calls == []


@pytest.mark.parametrize("contact", [Contact.REFUSED, Contact.UNSIGNED])
def test_a_node_that_ran_without_its_agent_keeps_its_power(node: Node, contact: Contact) -> None:
    """A person stopped the unit, and then the machine."""
    node.look()
    node.set_contact(1, contact)
    node.look()
    assert calls_after_hang(node) == []


def calls_after_hang(node: Node) -> list[str]:
    """What is run for the other node of a pair that hangs from now on."""
    node.hang(1)
    node.look_for(3 * MINUTES)
    return node.calls


def test_a_node_that_was_never_heard_keeps_its_power(node: Node) -> None:
    node.set_contact(1, Contact.UNHEARD, None)
    node.look()
    assert calls_after_hang(node) == []


def test_the_next_agent_counts_on_and_one_that_comes_late_does_not(node: Node) -> None:
    node.look()
    node.hang(1)
    node.look_for(MINUTES - 1)
    node.watch = PowerWatch(node.under_test.agent)
    node.set_contact(1, Contact.UNHEARD, None)
    node.look()
    node.set_contact(1, Contact.SILENT, None)
    node.look_for(2)
    assert len(node.calls) == 1
    (node.tree.root / STATE[1:]).unlink()
    node.look_for(MINUTES - 1)
    node.look(PAUSE_SECONDS + 1)
    node.look_for(2 * MINUTES)
    assert len(node.calls) == 1


@pytest.mark.parametrize(
    "text", ["", "{", '{"schema": 1, "at": NaN}', '{"schema": 1, "at": 1e300, "nodes": {"127.0.0.2": {}}}']
)
def test_what_was_seen_and_can_not_be_read_proves_nothing(node: Node, text: str) -> None:
    node.look()
    node.tree.file(WATCH, text)
    assert calls_after_hang(node) == []


def test_of_several_nodes_that_answer_the_first_one_runs_the_program(tree: Tree, port: int) -> None:
    with node_of(tree, port, 1, 3) as node:
        node.look()
        node.hang(2)
        node.look_for(MINUTES + 1)
        assert node.calls == []
        assert node.refusals == ["spark2 (127.0.0.1) answers too, and comes first"]
        node.set_contact(0, Contact.SILENT)
        node.look_for(MINUTES - 0.5)
        assert node.calls == []  # the first one may just have run it
        node.look_for(1)
        assert node.calls == ["127.0.0.3 cycle two words"]


def test_another_node_proves_as_much_as_the_gateway(tree: Tree, port: int) -> None:
    with node_of(tree, port, 0, 3) as node:
        node.look()
        node.hang(2)
        node.gone.add(GATEWAY)
        node.gone.add(lan(1))
        node.look_for(MINUTES + 1)
        assert node.calls == []
        node.gone.remove(lan(1))
        node.look_for(MINUTES + 1)
        assert node.calls == ["127.0.0.3 cycle two words"]


def test_a_program_that_others_may_change_is_not_run(node: Node) -> None:
    node.program("true", mode=0o777)
    assert calls_after_silence(node) == []
    (refusal,) = node.refusals
    assert "others than root may write to" in refusal
    assert not (node.tree.root / STATE[1:]).exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 1, "at": {"127.0.0.2": 1e300}}', "the clock was set back"),
        ('{"schema": 1, "at": {"127.0.0.2": NaN}}', "the clock was set back"),
        ('{"schema": 1, "at": 7}', "can't be read"),
        ("", "can't be read"),
    ],
)
def test_a_record_that_proves_nothing_keeps_the_program_from_being_run(node: Node, text: str, why: str) -> None:
    node.tree.file(STATE, text)
    assert calls_after_silence(node) == []
    assert why in node.refusals[0]


def test_without_a_record_on_the_disk_the_program_is_not_run(node: Node) -> None:
    node.look()
    node.hang(1)
    node.look_for(MINUTES)
    (node.tree.root / "var/lib/sparkd").rmdir()
    node.tree.file("/var/lib/sparkd", "no folder")
    with pytest.raises(OSError, match="directory"):
        node.look()
    assert node.calls == []


def test_what_the_program_prints_is_a_text_and_what_it_started_ends(node: Node) -> None:
    node.program('sleep 600 & echo $! >"$(dirname "$0")/calls"', "printf 'off\\033[2J\\n'", "exit 3")
    calls_after_silence(node)
    [ended] = [line for line in node.under_test.events.lines if line.startswith("power.command.ended")]
    assert "ended=exit code 3" in ended and "\\x1b[2J" in ended and "hint=turn that node off and on again" in ended
    [child] = node.calls
    stat = Path(f"/proc/{child}/stat")
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_program_that_can_not_be_executed_is_named(node: Node) -> None:
    node.tree.file(PROGRAM, "#!/nowhere/sh\n", 0o755)
    calls_after_silence(node)
    assert any(
        "power.command.ended" in line and "it can't be run: No such file" in line
        for line in node.under_test.events.lines
    )


def test_a_node_that_is_being_stopped_itself_runs_nothing(node: Node) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    node.under_test.agent.loop.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert calls_after_silence(node) == []
    for number, handler in before.items():
        signal.signal(number, handler)


PEER = PeerStatus("10.0.0.2", 1, Contact.ANSWERS, LONG_AGO, replace(SERVING, lan_address="192.168.1.12"))


def test_a_report_that_is_still_fresh_as_the_kernels_table_forgets_the_node_takes_nothing_back() -> None:
    before = advance(None, PEER, {"10.0.0.2": True, "192.168.1.12": True}, 1.0, "")
    assert before == WatchedNode(1.0, "192.168.1.12", 1.0)
    assert advance(before, PEER, {}, 2.0, "") == WatchedNode(2.0, "192.168.1.12", 1.0)
    assert advance(before, PEER, {}, 62.0, "") == WatchedNode(
        62.0, "", 62.0
    )  # it has another address there now, or no cable
    assert advance(None, PEER, {"192.168.1.12": True}, 2.0, "") is None


def test_a_nodes_report_has_its_second_address_of_now(tree: Tree, port: int) -> None:
    """At its agent's start DHCP may not have given it one, and may give it another one later."""
    with agent_under_test(tree, 0, settings(addresses(2), port)) as head:
        head.agent.reporter.update(lan_address="192.168.1.9")
        head.agent.monitor.check()
        assert head.agent.reporter.report.lan_address == ""  # a tree of files has no route


def test_no_node_is_watched_by_default(tree: Tree, port: int) -> None:
    def has_watch() -> bool:
        return any(thread.name == "power" for thread in threading.enumerate())

    configured = settings(addresses(2), port)
    with agent_under_test(tree, 0, configured):
        assert not has_watch()
    supervise = configured.supervise.model_copy(update={"power_command": (PROGRAM,)})
    with agent_under_test(tree, 0, configured.model_copy(update={"supervise": supervise})):
        assert has_watch()
