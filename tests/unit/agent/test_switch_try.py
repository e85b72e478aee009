"""A new plan is tried: it comes in force, or the plan before it is launched again."""

import errno
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.switched_nodes import (
    Clocked,
    DamagedDisk,
    ReadOnlyDisk,
    read_stage,
    read_switch,
    run_by,
    run_try,
    write_switch,
)
from tests.unit.cluster.silent_peers import SilentPeer
from tests.unit.cluster_nodes import AgentUnderTest, FullDisk, MemoryActions, last_exit, running, written
from tests.unit.nodes import report, status
from tests.unit.verdicts import present

from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.agent.daemon.startup import launch
from sparkd.agent.daemon.switch_start import stamp_switch
from sparkd.agent.daemon.switching import BLOCKED_SECONDS, SwitchRequested
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import (
    BlockedError,
    Cause,
    EngineEndedError,
    ExitCode,
    LaunchError,
    MemoryGuardError,
    NeedsPersonError,
    NotReadyError,
    OutdatedPlanError,
    PeerLostError,
    SparkdError,
    StalledError,
)
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import BACKOFF_SECONDS, End, LaunchHistory
from sparkd.base.state.switch import AWAITED_SECONDS, FILE, Stage
from sparkd.base.status.model import Phase
from sparkd.base.status.phases import PHASES


def test_a_new_choice_forgives_the_plans_earlier_failures(lone: AgentUnderTest) -> None:
    agent = lone.agent
    failures = LaunchHistory({agent.plan.backoff_key: len(BACKOFF_SECONDS)})
    Tree(Path(agent.host.files.root)).file(launch_history.FILE.path, launch_history.FILE.encode(failures))
    with pytest.raises(NeedsPersonError):
        agent.backoff.wait()
    run_by(lone, write_switch(lone, Stage.TRYING, 1)).switching.settle()
    assert written(agent.actions, launch_history.FILE).failures == {}
    assert lone.events.lines[-1].startswith("switch.plan.tried")


def test_a_new_plan_that_stays_blocked_without_a_break_is_given_up(lone: AgentUnderTest) -> None:
    clocked = Clocked(lone, write_switch(lone, Stage.TRYING, 1))
    lone.agent.phase.enter(Phase.BLOCKED, "image: missing")
    for _ in range(2):
        clocked.switching.watch()
        clocked.now += BLOCKED_SECONDS - 1
        lone.agent.phase.enter(Phase.PREFLIGHT)
        clocked.switching.watch()  # not blocked: the time begins again
        lone.agent.phase.enter(Phase.BLOCKED, "image: missing")
        clocked.switching.watch()
    clocked.now += BLOCKED_SECONDS + 1
    with pytest.raises(NotReadyError, match="blocked for 120 s: image: missing"):
        clocked.switching.watch()


@pytest.mark.parametrize("phase", [phase for phase in Phase if PHASES[phase].ahead])
def test_a_new_plan_that_is_not_launched_in_time_is_given_up(lone: AgentUnderTest, phase: Phase) -> None:
    """Whatever is awaited: docker, a node that is off, one that refuses connections."""
    clocked = Clocked(lone, write_switch(lone, Stage.TRYING, 1))
    lone.agent.phase.enter(phase, "waiting for spark2, where no sparkd runs")
    clocked.now += AWAITED_SECONDS + 1
    with pytest.raises(NotReadyError, match="not launched within 900 s: waiting for spark2") as given_up:
        clocked.switching.watch()
    lone.agent.phase.enter(Phase.LOADING)
    clocked.switching.watch()
    assert shutdown_on_error(lone.agent, None, given_up.value) is ExitCode.NOT_READY
    assert read_switch(lone) is None


def test_a_plan_in_force_awaits_docker_and_other_nodes_without_a_limit(lone: AgentUnderTest) -> None:
    clocked = Clocked(lone, write_switch(lone, Stage.IN_FORCE))
    clocked.now += AWAITED_SECONDS + 1
    lone.agent.phase.enter(Phase.AWAITING_DOCKER)
    clocked.switching.watch()


async def fails(error: Exception) -> None:
    raise error


def test_a_bug_while_an_engine_drains_leaves_no_rank(lone: AgentUnderTest) -> None:
    agent = lone.agent
    agent.phase.enter(Phase.SERVING)
    with running(agent) as (rank, process):
        agent.loop.spawn(fails(ZeroDivisionError("of a task")))
        with pytest.raises(ZeroDivisionError):
            shutdown_on_request(agent, rank, SwitchRequested(write_switch(lone, Stage.DRAINING)))
        assert process.wait(1) == -signal.SIGTERM
    assert any(line.startswith("switch.drain.started") for line in lone.events.lines)


def test_a_disk_that_fails_while_an_engine_drains_ends_only_the_drain(lone: AgentUnderTest) -> None:
    agent = lone.agent
    agent.phase.enter(Phase.SERVING)
    with running(agent) as (rank, process):
        agent.loop.spawn(fails(OSError(errno.EIO, "of a task")))
        shutdown_on_request(agent, rank, SwitchRequested(write_switch(lone, Stage.DRAINING)))
        assert process.wait(1) == -signal.SIGTERM
    assert lone.report.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineEndedError("boom"), ExitCode.ENGINE_ENDED),
        (NotReadyError("its smoke test failed"), ExitCode.NOT_READY),
        (NotReadyError("its smoke test failed; no docker", cause=Cause.DOCKER_HUNG), ExitCode.NOT_READY),
        (StalledError("it stalls", cause=Cause.OWN_ADDRESS_GONE), ExitCode.STALLED),
        (EngineEndedError("SIGKILL from outside", cause=Cause.KILLED_FROM_OUTSIDE), ExitCode.ENGINE_ENDED),
        (NeedsPersonError("reboot"), ExitCode.NOT_READY),
        (PeerLostError("rank 1 failed", cause=Cause.PEER_FAILED), ExitCode.PEER_LOST),
    ],
)
def test_a_failure_of_the_new_plan_itself_brings_the_old_one_back(
    lone: AgentUnderTest, error: SparkdError, code: ExitCode
) -> None:
    run_try(lone)
    assert shutdown_on_error(lone.agent, None, error) is code, "systemd starts the next process"
    assert read_switch(lone) is None
    end = last_exit(lone.agent.actions)
    assert end.reason == f"back to what is configured, recipe new did not come up: {error.reason}"
    assert end.cause == Cause.SWITCH_FAILED


@pytest.mark.parametrize(
    "error",
    [
        PeerLostError("rank 1 is silent", cause=Cause.PEER_SILENT),
        EngineEndedError("dockerd has restarted", cause=Cause.DOCKER_RESTARTED),
        MemoryGuardError("others took memory", cause=Cause.MEMORY_TAKEN),
        LaunchError("dockerd does not answer", cause=Cause.DOCKER_HUNG),
        EngineEndedError("no such address", cause=Cause.OWN_ADDRESS_GONE),
        EngineEndedError("nginx has its port", cause=Cause.PORT_TAKEN),
    ],
)
def test_an_end_that_is_no_fault_of_the_plan_ends_no_try(lone: AgentUnderTest, error: SparkdError) -> None:
    run_try(lone)
    assert shutdown_on_error(lone.agent, None, error) is error.code
    assert read_stage(lone) is Stage.TRYING
    assert last_exit(lone.agent.actions).reason == error.reason


@pytest.mark.parametrize(
    "end",
    [
        lambda agent: shutdown_on_error(agent, None, OutdatedPlanError("x")),
        lambda agent: shutdown_on_request(agent, None, StopRequested()),
    ],
    ids=["a new configuration", "a stop"],
)
def test_a_stop_and_a_new_configuration_do_not_count_as_tries(
    lone: AgentUnderTest, end: Callable[[Agent], object]
) -> None:
    run_try(lone)
    before = present(read_switch(lone))
    end(lone.agent)
    assert read_switch(lone) == replace(before, tries=0)


def test_a_failure_of_a_plan_in_force_is_an_ordinary_one(lone: AgentUnderTest) -> None:
    run_by(lone, write_switch(lone, Stage.IN_FORCE))
    shutdown_on_error(lone.agent, None, BlockedError("plan-lint: no"))
    assert last_exit(lone.agent.actions).reason == "plan-lint: no"


@pytest.mark.parametrize(
    ("phase", "cause", "last_cause", "stage"),
    [
        (Phase.BLOCKED, "", "", Stage.TRYING),
        (Phase.FAILED, "engine-error", "docker-restarted", None),
        (Phase.FAILED, "docker-restarted", "", Stage.TRYING),
        (Phase.PREFLIGHT, "", "docker-restarted", Stage.TRYING),
        (Phase.LOADING, "", "docker-restarted", None),
    ],
)
def test_a_worker_that_is_blocked_ends_no_try_and_one_that_failed_by_the_plan_does(
    lone: AgentUnderTest, phase: Phase, cause: str, last_cause: str, stage: Stage | None
) -> None:
    switch = write_switch(lone, Stage.TRYING, 1)
    peers = {1: SilentPeer(1)}
    peers[1].status = status(answer=report(1, phase=phase, cause=cause, last_cause_code=last_cause))
    monitor = PeerMonitor(peers, lone.agent.loop.start, 20.0)
    context = replace(lone.agent.context, switch=switch)
    agent = lone.remake(context=context, switch_seen=stamp_switch(lone.agent.host), monitor=monitor)
    agent.switching.end_try(End("rank 1 ended", int(ExitCode.PEER_LOST), cause=Cause.PEER_FAILED))
    assert read_stage(lone) is stage


def test_a_plan_that_works_is_in_force_and_its_finding_says_so(lone: AgentUnderTest) -> None:
    run_try(lone)
    lone.agent.switching.put_in_force()
    assert read_stage(lone) is Stage.IN_FORCE
    assert [finding.reason for finding in lone.report.findings] == [
        "instead of what is configured, recipe new is in force"
    ]


@pytest.mark.parametrize(
    ("actions", "reason", "hint"),
    [
        (FullDisk, "No space left on device", "df -h /var/lib/sparkd"),
        (ReadOnlyDisk, "Read-only file", "why it fails, or is read-only: sudo dmesg"),
        (DamagedDisk, "Structure needs cleaning", "why it fails, or is read-only: sudo dmesg"),
    ],
)
def test_a_launch_that_cannot_be_counted_is_blocked_with_the_disks_own_reason(
    lone: AgentUnderTest, actions: type[MemoryActions], reason: str, hint: str
) -> None:
    agent = lone.remake(actions=actions(lone.agent.host, lone.agent.loop, "a"))
    with pytest.raises(BlockedError, match=f"bounds crash loops: {reason}") as blocked:
        launch(agent)
    assert blocked.value.hint == hint


def test_a_plan_that_works_while_the_disk_is_full_is_in_force_once_there_is_room(lone: AgentUnderTest) -> None:
    run_try(lone)
    actions = lone.agent.actions
    full = lone.remake(actions=FullDisk(lone.agent.host, lone.agent.loop, "full"))
    full.switching.put_in_force()
    full.proving.begin()
    full.proving.tick()
    assert sum("state.write.failed" in line and "switch.json" in line for line in lone.events.lines) == 1
    agent = lone.remake(actions=actions)
    agent.proving.begin()
    assert agent.switching.tried
    agent.proving.tick()
    assert read_stage(lone) is Stage.IN_FORCE


def test_a_choice_that_cannot_be_read_any_more_is_logged_once_while_its_plan_serves(lone: AgentUnderTest) -> None:
    run_try(lone)
    Tree(Path(lone.agent.host.files.root)).file(FILE.path, "{")
    for _ in range(3):
        lone.agent.proving.tick()
    assert sum("state.read.failed" in line for line in lone.events.lines) == 1
