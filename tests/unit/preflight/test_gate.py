"""The gate before a launch, on machines made of files, with fixes that change those files."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import HEAD, plan

from sparkd.agent.preflight.check import AnyCheck, Finding, Level, Verdict
from sparkd.agent.preflight.checks.free_memory import PageCache
from sparkd.agent.preflight.checks.memory import UnifiedMemory
from sparkd.agent.preflight.checks.ports import Ports
from sparkd.agent.preflight.checks.rdma import Rdma
from sparkd.agent.preflight.checks.shared_memory import SharedMemory
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.fixes import Applied, DropPageCache, EndProcess, Fix, Identity, UnlinkSegment
from sparkd.agent.preflight.gate import MAX_ROUNDS, BuildChecks, Gate, GateIO, GateResult
from sparkd.base.config import Settings
from sparkd.base.config.settings import Preflight
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts
from sparkd.base.host.gpu import NO_GPU, GpuFacts
from sparkd.base.host.infiniband import CONNECTX, PCI
from sparkd.base.lib.errors import Action, BlockedError, ConfigError, ExitCode, LaunchError, NeedsPersonError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import CheckInputs, MemoryNeed, MemorySample
from sparkd.base.recipes.schema import Container

POLICY = Preflight(wait_seconds=100)
NEED = MemoryNeed(memory_bytes=90 * GIB, gpu_memory_utilization=None, headroom_bytes=0)
GB10 = GpuFacts(("NVIDIA GB10",), None, ())
CLUSTERED = replace(plan(replace(HEAD, hcas=())), env=(), container=Container(gpus="all", devices=("/dev/infiniband",)))
NO_CONTAINERS = DockerFacts(True, ())
ID = "0123456789abcdef" * 4


def build(baseline: MemorySample | None, tried: frozenset[Identity]) -> Sequence[AnyCheck]:
    return (
        StrayWorkers(tried),
        SharedMemory(),
        PageCache(NEED),
        UnifiedMemory(NEED, Settings(), memory_baseline=baseline),
    )


@dataclass
class Machine:
    """A healthy node, and all that the gate reported about it."""

    tree: Tree
    docker: DockerFacts = NO_CONTAINERS
    gpu: GpuFacts = NO_GPU
    hooks: tuple[Finding, ...] = ()
    hooks_run: int = 0
    waits: list[str] = field(default_factory=list)
    waited_seconds: float = 0.0
    events: list[tuple[str, str]] = field(default_factory=list)
    levels: dict[str, str] = field(default_factory=dict)
    """Of the last event of each check or fix, unless info."""
    shown: list[tuple[Finding, ...]] = field(default_factory=list)
    on_wait: Callable[[float], None] = lambda _waited: None
    failing: tuple[str, ...] = ()
    """Kinds of fixes that fail."""
    tried: list[Fix] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree.process(1, "systemd", parent=0)
        self.tree.listening()
        self.tree.file("/sys/fs/cgroup/memory.stat", "kernel 4096\nslab 4096\n")
        self.tree.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
        self.uptime(10_000)

    def uptime(self, seconds: float) -> None:
        self.tree.file("/proc/uptime", f"{seconds:.2f} 1.00\n")

    def orphan(self) -> None:
        self.tree.process(10, "VLLM::Worker_TP", group=9, opened=("/dev/shm/psm_0123abcd",))
        self.tree.segment("psm_0123abcd")

    def foreign_engine(self) -> None:
        self.tree.process(30, "vllm", argv=("vllm", "serve"))

    def engine_of_unknown_container(self) -> None:
        self.tree.process(10, "vllm", argv=("vllm", "serve"), cgroup=f"0::/docker/{ID}", namespace_pid=1)
        self.docker = AWAY

    def gate(self, policy: Preflight = POLICY, build_checks: BuildChecks = build) -> Gate:
        host = Host(self.tree.root, lambda: self.docker, lambda: self.gpu, os.getuid())
        io = GateIO(self.apply, self._run_hooks, self._wait, MainLoop(Notifier(), {}), self, self.shown.append)
        return Gate(build_checks, host, policy, io)

    def apply(self, fix: Fix) -> Applied:
        """Make each change to the tree that the real actions make to the machine."""
        self.tried.append(fix)
        if fix.kind in self.failing:
            return Applied("failed", "it does not work")
        match fix:
            case EndProcess():
                shutil.rmtree(self.tree.root / f"proc/{fix.pid}")
            case UnlinkSegment():
                (self.tree.root / fix.path.lstrip("/")).unlink()
            case DropPageCache():
                self.tree.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
            case _:
                raise LaunchError("docker went away", "look at it")
        return Applied("applied")

    def _run_hooks(self) -> tuple[Finding, ...]:
        self.hooks_run += 1
        return self.hooks

    def _wait(self, seconds: float, what: str) -> None:
        self.waits.append(what)
        self.waited_seconds += seconds
        self.uptime(10_000 + self.waited_seconds)
        self.on_wait(self.waited_seconds)

    def info(self, event: str, **fields: object) -> None:
        self.events.append((event, str(fields.get("check") or fields.get("kind") or "")))

    def warning(self, event: str, **fields: object) -> None:
        self.info(event, **fields)
        self.levels[self.events[-1][1]] = "warning"

    def error(self, event: str, **fields: object) -> None:
        self.info(event, **fields)
        self.levels[self.events[-1][1]] = "error"


@pytest.fixture
def machine(tree: Tree) -> Machine:
    return Machine(tree)


def levels(findings: tuple[Finding, ...]) -> dict[str, Level]:
    return {finding.id: finding.verdict.level for finding in findings}


def test_a_healthy_node_is_admitted_and_nothing_is_touched(machine: Machine) -> None:
    admission = machine.gate().admit()
    assert set(levels(admission.findings).values()) == {Level.OK}
    assert admission.before == ()
    assert machine.tried == []
    assert machine.waits == []
    assert machine.events[-1][0] == "preflight.gate.passed"


def test_a_node_without_room_for_a_thread_is_blocked_until_there_is_some(machine: Machine, no_thread: None) -> None:
    with pytest.raises(BlockedError, match=r"no look at this node: .*thread"):
        machine.gate().admit()


def test_strays_are_ended_and_then_what_they_left_is_unlinked(machine: Machine) -> None:
    machine.orphan()
    admission = machine.gate().admit()
    assert [fix.kind for fix in machine.tried] == ["end-process", "unlink-segment"]
    assert levels(admission.before)["stray-workers"] is Level.BLOCK
    assert levels(admission.findings)["stray-workers"] is Level.OK
    assert [fix.state for fix in admission.fixes] == ["applied", "applied"]
    assert ("preflight.fix.applied", "end-process") in machine.events


def test_nothing_is_touched_beside_a_living_engine_of_somebody_else(machine: Machine) -> None:
    machine.orphan()
    machine.foreign_engine()
    machine.tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=110, Cached=100)
    with pytest.raises(BlockedError) as refused:
        machine.gate().admit()
    assert machine.tried == []
    assert refused.value.code is ExitCode.BLOCKED
    assert refused.value.reason.startswith("stray-workers: a living engine: pid 30 (vllm)")
    assert refused.value.hint.startswith("stop it first: ")


@pytest.mark.parametrize("what", [Machine.foreign_engine, Machine.engine_of_unknown_container])
def test_what_blocks_is_logged_as_an_error_and_a_warning_as_one(
    machine: Machine, what: Callable[[Machine], None]
) -> None:
    what(machine)
    machine.tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=110, Cached=100)
    with pytest.raises(BlockedError):
        machine.gate(Preflight(wait_seconds=0)).admit()
    assert machine.levels == {"stray-workers": "error", "page-cache": "warning", "unified-memory": "warning"}


def test_page_cache_worth_dropping_is_dropped_once(machine: Machine) -> None:
    machine.tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=110, Cached=100)
    machine.failing = ("drop-page-cache",)
    admission = machine.gate().admit()
    assert [fix.state for fix in admission.fixes] == ["failed"]
    assert levels(admission.findings)["page-cache"] is Level.WARN, "a warning does not hold the launch back"


def test_a_fix_that_is_not_allowed_is_not_made(machine: Machine) -> None:
    machine.orphan()
    with pytest.raises(BlockedError) as refused:
        machine.gate(Preflight(allow_fixes=("unlink-segment",), wait_seconds=0)).admit()
    assert machine.tried == []
    assert refused.value.hint == "preflight.allow_fixes leaves it to a person: sudo sparkd preflight --fix 10"


def test_a_fix_that_fails_is_reported_and_not_repeated(machine: Machine) -> None:
    machine.orphan()
    machine.failing = ("end-process",)
    with pytest.raises(BlockedError, match="an orphaned engine does not end"):
        machine.gate().admit()
    assert len(machine.tried) == 1


def test_an_action_that_raises_is_a_failed_fix(machine: Machine) -> None:
    stale = ContainerFacts(ID, "sparkd-rank0", (("io.sparkd.role", "head"),), False, 0, "sha256:1", "no")
    machine.docker = DockerFacts(True, (stale,))
    admission = machine.gate().fix_and_recheck()
    assert [(fix.state, fix.note) for fix in admission.fixes] == [("failed", "docker went away (look at it)")]


def test_strays_that_come_again_and_again_end_after_some_rounds(machine: Machine) -> None:
    pids = itertools.count(101)

    def breed(_baseline: MemorySample | None, _tried: frozenset[Identity]) -> Sequence[AnyCheck]:
        machine.tree.process(next(pids), "VLLM::Worker_TP", group=9)
        return (StrayWorkers(),)

    with pytest.raises(BlockedError):
        machine.gate(build_checks=breed).admit()
    assert len(machine.tried) == MAX_ROUNDS


def test_a_stray_that_survives_its_fix_holds_its_port_where_stray_workers_only_warns(machine: Machine) -> None:
    machine.tree.process(10, "VLLM::Worker_TP", group=9, opened=("socket:[5]",))
    machine.tree.listening((29501, 5))
    machine.failing = ("end-process",)
    policy = Preflight(downgrade=("stray-workers",))

    def build_both(_baseline: MemorySample | None, tried: frozenset[Identity]) -> Sequence[AnyCheck]:
        inputs = CheckInputs(plan(HEAD), Settings(preflight=policy), tried=tried)
        return StrayWorkers.from_inputs(inputs), Ports.from_inputs(inputs)

    with pytest.raises(BlockedError, match="ports: port 29501 of the rendezvous is held on"):
        machine.gate(policy, build_both).admit()
    assert [fix.kind for fix in machine.tried] == ["end-process"]


def test_docker_is_waited_for_and_then_all_is_looked_at_again(machine: Machine) -> None:
    machine.engine_of_unknown_container()

    def on_wait(waited: float) -> None:
        if waited >= 3:
            machine.docker = DockerFacts(True, ())
            shutil.rmtree(machine.tree.root / "proc/10")

    machine.on_wait = on_wait
    machine.gate().admit()
    assert len(set(machine.waits)) == 1
    assert re.fullmatch(r"waiting for docker since \d\d:\d\d:\d\d UTC, 100 s at most", machine.waits[0])
    assert len(machine.waits) == 3
    assert machine.hooks_run == 1
    judged = [event for event in machine.events if event == ("preflight.check.judged", "stray-workers")]
    assert len(judged) == 2, "one event when it blocks, one when it no longer does"


def test_a_wait_for_docker_ends_after_its_time(machine: Machine) -> None:
    machine.engine_of_unknown_container()
    with pytest.raises(BlockedError, match="docker can't identify"):
        machine.gate(Preflight(wait_seconds=3)).admit()
    assert len(machine.waits) == 3


def test_what_a_warning_awaits_is_waited_for_once_and_gone_without(machine: Machine) -> None:
    lacks = Rdma(CLUSTERED, Settings())
    first = machine.gate(Preflight(wait_seconds=3), lambda *_: (lacks,))
    first.admit()
    assert machine.waits == [], "without a card none can come"
    machine.tree.file(f"{PCI}/0000:01:00.0/vendor", f"{CONNECTX}\n")
    first.admit()
    assert len(machine.waits) == 3
    assert "waiting for RDMA devices since" in machine.waits[0]
    assert machine.events.count(("preflight.wait.started", "")) == 1
    again = machine.gate(Preflight(wait_seconds=3), lambda *_: (lacks,))
    again.given_up = first.given_up
    again.admit()
    assert len(machine.waits) == 3, "a second preflight of the same start does not wait again"


def test_a_device_that_comes_while_awaited_ends_the_wait(machine: Machine) -> None:
    def on_wait(waited: float) -> None:
        if waited >= 2:
            machine.tree.file("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
            machine.tree.file("/sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n")

    machine.on_wait = on_wait
    machine.tree.file(f"{PCI}/0000:01:00.0/vendor", f"{CONNECTX}\n")
    admission = machine.gate(build_checks=lambda *_: (Rdma(CLUSTERED, Settings()),)).admit()
    assert len(machine.waits) == 2
    assert levels(admission.findings) == {"rdma": Level.OK}


def test_nothing_is_awaited_that_would_leave_the_node_blocked(machine: Machine) -> None:
    machine.engine_of_unknown_container()
    (machine.tree.root / "proc/meminfo").unlink()
    with pytest.raises(BlockedError):
        machine.gate().admit()
    assert machine.waits == [], "docker alone would be waited for"


def test_memory_that_comes_back_while_waited_for_admits(machine: Machine) -> None:
    machine.gpu = GB10
    machine.tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20)

    def on_wait(waited: float) -> None:
        available = 20 + 2 * waited
        machine.tree.meminfo(MemTotal=120, MemFree=available, MemAvailable=available)

    machine.on_wait = on_wait
    machine.gate().admit()
    assert machine.waited_seconds == 35, "90 GiB are there, at 2 GiB a second from 20"
    assert len(machine.waits) < 35, "looks at a wait that lasts become fewer"
    judged = [event for event in machine.events if event == ("preflight.check.judged", "unified-memory")]
    assert len(judged) == 2, "another size is no other decision"


def test_memory_that_stays_away_needs_a_person_once_it_has_settled(machine: Machine) -> None:
    machine.gpu = GB10
    machine.tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=20)  # available counts
    with pytest.raises(NeedsPersonError) as refused:
        machine.gate().admit()
    assert refused.value.code is ExitCode.NEEDS_PERSON
    assert refused.value.action is Action.REBOOT
    assert refused.value.hint == "reboot this node: sudo systemctl reboot"
    assert machine.waited_seconds == 60
    assert all("waiting for memory since" in wait for wait in machine.waits)


def test_memory_that_is_taken_during_the_wait_does_not_delay_the_decision(machine: Machine) -> None:
    machine.gpu = GB10
    machine.tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20)

    def on_wait(waited: float) -> None:
        available = 20 - waited / 30
        machine.tree.meminfo(MemTotal=120, MemFree=available, MemAvailable=available)

    machine.on_wait = on_wait
    with pytest.raises(NeedsPersonError):
        machine.gate().admit()
    assert machine.waited_seconds == 60


def test_a_finding_that_needs_a_person_is_named_first(machine: Machine) -> None:
    findings = (
        Finding("a", Verdict(Level.BLOCK, "first"), {}, 0),
        Finding("b", Verdict(Level.BLOCK, "second", "reboot", needs_person=True), {}, 0),
    )
    refusal = GateResult((), findings, ()).refusal()
    assert isinstance(refusal, NeedsPersonError)
    assert str(refusal) == "b: second; and 1 more: a (reboot)"


@pytest.mark.parametrize("level", [Level.BLOCK, Level.UNKNOWN])
def test_a_hook_that_blocks_holds_the_fixes_back(machine: Machine, level: Level) -> None:
    machine.orphan()
    machine.hooks = (Finding("hook:10-site", Verdict(level, "no cable"), {}, 0),)
    with pytest.raises(BlockedError, match="hook:10-site: no cable; and 1 more: stray-workers"):
        machine.gate().admit()
    assert machine.tried == []


def test_hooks_run_once_and_their_word_stands_after_the_fixes(machine: Machine) -> None:
    machine.orphan()
    machine.hooks = (Finding("hook:10-site", Verdict(Level.OK, "good"), {}, 0),)
    admission = machine.gate().admit()
    assert machine.hooks_run == 1
    assert levels(admission.before)["hook:10-site"] is levels(admission.findings)["hook:10-site"] is Level.OK


def test_findings_are_shown_after_each_look(machine: Machine) -> None:
    machine.orphan()
    machine.gate().admit()
    assert [levels(findings)["stray-workers"] for findings in machine.shown] == [Level.BLOCK, Level.OK, Level.OK]


def test_checks_are_skipped_and_downgraded_by_the_settings(machine: Machine) -> None:
    machine.foreign_engine()
    machine.tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=10)
    policy = Preflight(skip=("unified-memory",), downgrade=("stray-workers",), wait_seconds=0)
    admission = machine.gate(policy).admit()
    assert "unified-memory" not in levels(admission.findings)
    assert levels(admission.findings)["stray-workers"] is Level.WARN


def test_an_unknown_id_in_the_settings_is_wrong_configuration(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="stray-worker, which is no check; did you mean stray-workers"):
        machine.gate(Preflight(skip=("stray-worker",), wait_seconds=0)).fix_and_recheck()
