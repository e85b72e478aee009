"""Whether a node may reboot itself, over trees of files and a `systemctl` that only notes what it is called with."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_runs import World, configuration, run_agent
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone
from tests.unit.http_receivers import receiver
from tests.unit.traffic_programs import Programs

from sparkd.agent.actions import Actions
from sparkd.agent.daemon.context import Pace
from sparkd.agent.daemon.reboot import APART_SECONDS, find_earlier, find_session, reboot_if_due
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.endings import Stage
from sparkd.base.lib.errors import Action, Cause, EngineEndedError, ExitCode, LaunchError, NeedsPersonError, SparkdError
from sparkd.base.lib.main_loop import SIGNALS
from sparkd.base.state.launch_history import End

PROVEN = NeedsPersonError("the driver leaks", "reboot this node", action=Action.REBOOT, proven=True)


END = End("the driver leaks", 17, "reboot this node", "preflight", "", Cause.NEEDS_PERSON, Action.REBOOT)


REBOOT = "reboot --check-inhibitors=yes"


SESSIONS, STATE = "/run/systemd/sessions", "/var/lib/sparkd/reboot.json"


class Node:
    """One whose agent has ended, and the calls of systemctl."""

    def __init__(self, under_test: AgentUnderTest, folder: Path) -> None:
        self.under_test, self.folder = under_test, folder
        self.tree = Tree(Path(under_test.agent.host.files.root))

    def requests_reboot(self, error: SparkdError = PROVEN, end: End = END) -> bool:
        before = self.calls.count(REBOOT)
        reboot_if_due(self.under_test.agent, error, end)
        return self.calls.count(REBOOT) > before

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def refusal(self) -> str:
        [line] = [line for line in self.under_test.events.lines if line.startswith("agent.reboot.refused")]
        reason, _, hint = line.partition("reason=")[2].partition(" hint=")
        assert hint == "sudo systemctl reboot"
        return reason


def note_calls(programs: Programs, jobs: str = "") -> None:
    programs.write("systemctl", f'echo "$*" >>{programs.folder}/calls\ncase "$1" in list-jobs) printf "{jobs}";; esac')


@pytest.fixture
def node(tree: Tree, programs: Programs) -> Iterator[Node]:
    note_calls(programs)
    configured = alone()
    supervise = configured.supervise.model_copy(update={"reboot": True})
    with agent_under_test(tree, 0, configured.model_copy(update={"supervise": supervise})) as under_test:
        under_test.agent.loop.endings.enter(Stage.END)
        under_test.remake(
            actions=Actions(under_test.agent.host, under_test.agent.loop, NodeOwner(os.getpid(), "a test", "x"), -1)
        )
        node = Node(under_test, programs.folder)
        node.tree.folder(SESSIONS)
        yield node


def session(tree: Tree, name: str, kind: str) -> None:
    tree.file(f"{SESSIONS}/{name}", f"# of logind\nUID=1000\nUSER=anna\nACTIVE=1\nCLASS={kind}\n")


def test_a_node_reboots_once_in_six_hours(node: Node) -> None:
    assert node.requests_reboot()
    assert node.calls[-1] == REBOOT
    kept = json.loads((node.tree.root / STATE[1:]).read_text())
    assert kept["at"] == pytest.approx(time.time(), abs=60)
    assert not node.requests_reboot()
    assert "it requested a reboot 0 s ago, and does so once in 6 h 0 min at most" in node.refusal
    node.tree.file(STATE, json.dumps({"schema": 1, "at": time.time() - APART_SECONDS - 1}))
    assert node.requests_reboot()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 1, "at": 100.0}', "once in 6 h"),
        ('{"schema": 1, "at": 1000.5}', "the clock was set back"),
        ('{"schema": 1, "at": 1e300}', "the clock was set back"),
        ('{"schema": 1, "at": NaN}', "the clock was set back"),
        ('{"schema": 1}', "can't be read"),
        ("", "can't be read"),
    ],
)
def test_a_record_that_proves_nothing_lets_no_node_reboot(tree: Tree, text: str, why: str) -> None:
    tree.file(STATE, text)
    assert why in find_earlier(Host(tree.root).files, 1000.0)


def test_a_record_that_is_no_file_lets_no_node_reboot(node: Node) -> None:
    node.tree.folder(STATE)
    assert not node.requests_reboot()
    assert node.refusal
    assert REBOOT not in node.calls


@pytest.mark.parametrize("kind", ["user", "user-early", "user-light", "user-early-light", "greeters", "", "none"])
def test_a_session_of_a_person_keeps_a_node_from_rebooting(node: Node, kind: str) -> None:
    session(node.tree, "c1", "greeter")
    session(node.tree, "3", kind)
    assert not node.requests_reboot()
    assert "anna may be logged in: session 3" in node.refusal
    assert REBOOT not in node.calls


@pytest.mark.parametrize(
    "kind", ["greeter", "manager", "manager-early", "background", "background-light", "lock-screen"]
)
def test_sessions_that_are_nobody_s_do_not_keep_it_from_rebooting(tree: Tree, kind: str) -> None:
    session(tree, "c1", kind)
    os.mkfifo(tree.root / f"{SESSIONS[1:]}/c1.ref")
    assert find_session(Host(tree.root).files) == ""


def test_sessions_that_can_not_be_read_count_as_people(tree: Tree) -> None:
    assert "can't be read" in find_session(Host(tree.root).files)
    tree.folder(f"{SESSIONS}/c1")
    assert "can't be read" in find_session(Host(tree.root).files)


def test_a_node_does_not_reboot_by_default_nor_for_other_actions(node: Node) -> None:
    assert not alone().supervise.reboot
    assert not node.requests_reboot(end=replace(END, action=Action.POWER_CYCLE))
    agent = node.under_test.agent
    node.under_test.remake(settings=alone())
    reboot_if_due(node.under_test.agent, PROVEN, END)
    assert node.calls == []
    assert agent.settings.supervise.reboot


@pytest.mark.parametrize(
    "error",
    [
        NeedsPersonError("the driver leaks", action=Action.REBOOT),
        EngineEndedError("Xid 119: reboot this node"),
        LaunchError("reboot", action=Action.REBOOT),
    ],
)
def test_what_this_node_s_checks_did_not_prove_reboots_nothing(node: Node, error: SparkdError) -> None:
    assert not node.requests_reboot(error)
    assert "not all that blocks was proven" in node.refusal
    assert node.calls == []


@pytest.mark.parametrize("jobs", ["7 sparkd-head.service stop running", "7 sparkd-head.service restart waiting"])
def test_a_unit_that_is_being_stopped_reboots_nothing(node: Node, programs: Programs, jobs: str) -> None:
    note_calls(programs, jobs)
    assert not node.requests_reboot()
    assert "a stop of its unit is ordered" in node.refusal


def test_a_unit_that_is_still_starting_may_reboot_its_node(node: Node, programs: Programs) -> None:
    note_calls(programs, "7 sparkd-head.service start running")
    assert node.requests_reboot()


@pytest.fixture
def _own_handlers() -> Iterator[None]:
    """Handlers of signals are taken back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_own_handlers")
def test_a_stop_that_comes_during_the_last_look_reboots_nothing(node: Node, programs: Programs) -> None:
    """As `kill` by hand, for which systemd has no job."""
    node.under_test.agent.loop.listen()
    note_calls(programs, f"$(test -e {programs.folder}/first && kill -TERM {os.getpid()}; >{programs.folder}/first)")
    assert not node.requests_reboot()
    assert node.refusal == "a stop was requested"
    assert REBOOT not in node.calls


def test_disks_that_hang_do_not_hold_the_reboot(node: Node) -> None:
    agent, released = node.under_test.agent, threading.Event()

    class HungDisks(Actions):
        def sync_disks(self) -> None:
            self._act(lambda: released.wait(30) and None, 0.2, "sync")

    node.under_test.remake(actions=HungDisks(agent.host, agent.loop, agent.actions.owner, -1))
    began = time.monotonic()
    assert node.requests_reboot()
    assert 0.2 <= time.monotonic() - began < 10
    released.set()


def configure_webhook(node: Node, url: str) -> None:
    node.tree.file("/etc/sparkd/webhook", url, 0o600)
    settings = node.under_test.agent.settings.model_copy(update={"notify": Notify(webhook_file="/etc/sparkd/webhook")})
    node.under_test.remake(settings=settings)


def test_the_message_is_sent_before_the_reboot_is_requested(node: Node) -> None:
    with receiver() as received:
        configure_webhook(node, received.url)
        assert node.requests_reboot()
        [body] = received.bodies
    assert "sparkd reboots this node, nothing is to be done: the driver leaks" in json.loads(body)["text"]


def test_a_message_that_hangs_is_waited_for_and_no_longer(node: Node) -> None:
    node.under_test.remake(pace=Pace(message_seconds=0.3))
    with receiver() as received:
        received.slow = True
        configure_webhook(node, received.url)
        began = time.monotonic()
        assert node.requests_reboot()
        assert 0.3 <= time.monotonic() - began < 5
    assert any(line.startswith("notify.message.failed") for line in node.under_test.events.lines)


def test_a_person_who_logs_in_while_disks_are_synced_keeps_a_node_from_rebooting(node: Node) -> None:
    agent = node.under_test.agent

    class Disks(Actions):
        def sync_disks(self) -> None:
            session(node.tree, "3", "user")

    node.under_test.remake(actions=Disks(agent.host, agent.loop, agent.actions.owner, -1))
    assert not node.requests_reboot()
    assert not (node.tree.root / STATE[1:]).exists()


def test_without_a_record_on_disk_no_reboot_is_requested(node: Node) -> None:
    agent = node.under_test.agent

    class FullDisk(Actions):
        def write_state(self, name: str, text: str, mode: int) -> None:
            raise OSError(28, "No space left on device")

    node.under_test.remake(actions=FullDisk(agent.host, agent.loop, agent.actions.owner, -1))
    assert not node.requests_reboot()
    assert "can't be written" in node.refusal


def test_a_systemd_that_refuses_is_named_with_its_words(node: Node, programs: Programs) -> None:
    programs.write("systemctl", 'test "$1" = list-jobs && exit 0; echo "Operation inhibited" >&2; exit 1')
    assert not node.requests_reboot()
    assert node.refusal == "systemctl reboot ended with exit code 1: Operation inhibited"


def test_a_request_that_was_inhibited_does_not_count_and_any_other_does(node: Node, programs: Programs) -> None:
    programs.write("systemctl", 'test "$1" = list-jobs && exit 0; echo "Operation inhibited by "apt"" >&2; exit 1')
    assert not node.requests_reboot()
    note_calls(programs)
    assert node.requests_reboot()
    node.tree.file(STATE, '{"schema": 1, "at": 0}')
    programs.write("systemctl", 'test "$1" = list-jobs && exit 0; kill -TERM $$')  # it may be under way
    assert not node.requests_reboot()
    note_calls(programs)
    assert not node.requests_reboot()


RECIPE = "extends: tiny-cpu\nschema: 1\nname: tiny-gpu\ncontainer: {gpus: all}\n"


def test_a_run_that_ends_with_the_action_reboot_reboots_once_and_the_next_does_not(
    world: World, programs: Programs
) -> None:
    note_calls(programs)
    text = configuration(world.port, unskipped=("kernel-log",)).replace("tiny-cpu", "tiny-gpu")
    world.tree.file("/etc/sparkd/sparkd.toml", f"{text}supervise.reboot = true\n")
    world.tree.file("/etc/sparkd/recipes/tiny-gpu.yaml", RECIPE)
    world.tree.file("/dev/kmsg", "4,1,1000000,-;NVRM: Xid (PCI:000f:01:00): 119, pid=7, name=x, Timeout\n")
    world.tree.file("/proc/uptime", "100.0 100.0\n")
    world.tree.folder(SESSIONS)
    code, journal = run_agent(world)
    assert code is ExitCode.NEEDS_PERSON, journal
    assert "agent.reboot.requested" in journal
    code, journal = run_agent(world)
    assert code is ExitCode.NEEDS_PERSON
    assert "agent.reboot.refused" in journal
    assert (programs.folder / "calls").read_text().splitlines().count(REBOOT) == 1
