"""The agent's part in a switch: it sees the choice, tries it, and says which plan follows a failure."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster.silent_peers import SilentPeer
from tests.unit.cluster_nodes import (
    AgentUnderTest,
    FullDisk,
    MemoryActions,
    agent_under_test,
    alone,
    last_exit,
    running,
    written,
)
from tests.unit.known_good_entries import known_good_entry
from tests.unit.limits import files_left
from tests.unit.nodes import report, status
from tests.unit.nodes import until as until_true

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.agent.daemon.startup import launch
from sparkd.agent.daemon.switch_start import begin_switch, stamp_switch
from sparkd.agent.daemon.switching import BLOCKED_SECONDS, Switching, SwitchRequested
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.config.settings import Engine
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import (
    AwaitedError,
    BlockedError,
    Cause,
    EngineEndedError,
    ExitCode,
    NeedsPersonError,
    NotReadyError,
    OutdatedPlanError,
    PeerLostError,
    SparkdError,
)
from sparkd.base.lib.main_loop import never
from sparkd.base.state import launch_history
from sparkd.base.state.file import Content, StateFile
from sparkd.base.state.launch_history import BACKOFF_SECONDS, End, LaunchHistory
from sparkd.base.state.switch import (
    AWAITED_SECONDS,
    CONFIGURED,
    FILE,
    TRIES,
    Chosen,
    Stage,
    Switch,
    make_rollback,
)
from sparkd.base.status.model import Phase
from sparkd.base.status.phases import PHASES

LONG_AGO, FAR_AHEAD = "2001-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    with agent_under_test(tree, 0, alone()) as node:
        yield node


def chosen(node: AgentUnderTest, name: str = "new", until: str = "") -> Chosen:
    context = node.agent.context
    return Chosen(context.recipe.model_copy(update={"name": name}), context.settings.engine, until=until)


def write_switch(node: AgentUnderTest, stage: Stage, tries: int = 0, until: str = "", **changes: object) -> Switch:
    """As `sparkd use` or an earlier process has left it."""
    replaces = membership.fingerprint_config(node.agent.context.configured, node.agent.host)
    switch = Switch(replaces, stage, chosen(node, until=until), (), tries, 60, "2026-01-01")
    switch = replace(switch, **changes)
    files = node.agent.host.files
    assert compare_and_swap(files, FILE, FILE.read(files), switch)
    return switch


def wait_for_end(switching: Switching, node: AgentUnderTest, seconds: float = 5.0) -> None:
    """Wait as the main loop does, so long at most. Raises what ends the run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        switching.watch()
        node.agent.loop.wait_until(never, 0.02, shielded=True)


def read_switch(node: AgentUnderTest) -> Switch | None:
    """None where the file was removed."""
    return FILE.read(node.agent.host.files, pytest.fail)


def read_stage(node: AgentUnderTest) -> Stage | None:
    switch = read_switch(node)
    return switch.stage if switch else None


def begin(node: AgentUnderTest, config: Settings | None = None) -> Switch | None:
    agent = node.agent
    return begin_switch(config or agent.context.configured, agent.host, agent.actions, agent.events)[0]


def run_try(node: AgentUnderTest) -> None:
    """A process that was started to try the chosen plan."""
    run_by(node, write_switch(node, Stage.TRYING, 1))


def run_by(node: AgentUnderTest, switch: Switch) -> Agent:
    """A process that was started with this choice."""
    return node.remake(context=replace(node.agent.context, switch=switch), switch_seen=stamp_switch(node.agent.host))


def test_the_next_process_tries_what_was_chosen_and_counts_it(started: AgentUnderTest) -> None:
    before = write_switch(started, Stage.DRAINING)
    assert begin(started) == read_switch(started) == replace(before, stage=Stage.TRYING, tries=1)


def test_after_tries_that_ended_without_a_reason_the_node_goes_back_and_logs_it(started: AgentUnderTest) -> None:
    write_switch(started, Stage.TRYING, TRIES)
    assert begin(started) is None
    assert read_switch(started) is None
    end = last_exit(started.agent.actions)
    assert end.cause == Cause.SWITCH_FAILED
    assert end.reason.startswith("back to what is configured, recipe new did not come up")
    assert started.events.lines[-1].startswith("switch.plan.returned")


def test_a_plan_that_cannot_be_made_any_more_is_left_at_once(started: AgentUnderTest) -> None:
    recipe = started.agent.context.recipe
    for_two = recipe.model_copy(update={"nodes": recipe.nodes.model_copy(update={"min": 2, "max": 2})})
    for stage in (Stage.DRAINING, Stage.TRYING):
        started.events.lines.clear()
        write_switch(started, stage, 1, to=Chosen(for_two, started.agent.context.settings.engine))
        assert begin(started) is None
        assert "needs 2 node(s)" in started.events.lines[-1]


def test_a_plan_whose_time_ended_while_the_node_was_off_is_left(started: AgentUnderTest) -> None:
    write_switch(started, Stage.IN_FORCE, until=LONG_AGO)
    assert begin(started) is None
    assert read_switch(started) is None


def test_a_changed_configuration_ends_every_stage(started: AgentUnderTest) -> None:
    other = alone().model_copy(update={"engine": alone().engine.model_copy(update={"image": "other:1"})})
    for stage in Stage:
        write_switch(started, stage)
        assert begin(started, other) is None
    started.agent.switching.settle()
    assert started.events.lines == [], "what is configured here is still what it replaces"


def test_a_new_choice_forgives_the_plans_earlier_failures(started: AgentUnderTest) -> None:
    agent = started.agent
    failures = LaunchHistory({agent.plan.backoff_key: len(BACKOFF_SECONDS)})
    Tree(Path(agent.host.files.root)).file(launch_history.FILE.path, launch_history.FILE.encode(failures))
    with pytest.raises(NeedsPersonError):
        agent.backoff.wait()
    run_by(started, write_switch(started, Stage.TRYING, 1)).switching.settle()
    assert written(agent.actions, launch_history.FILE).failures == {}
    assert started.events.lines[-1].startswith("switch.plan.tried")


def test_a_running_agent_leaves_for_a_chosen_plan_once(started: AgentUnderTest) -> None:
    agent = started.agent
    agent.switching.watch()
    write_switch(started, Stage.DRAINING)
    with pytest.raises(SwitchRequested, match="leaving for recipe new") as request:
        wait_for_end(agent.switching, started)
    shutdown_on_request(agent, None, request.value)
    assert agent.store.read_launches().last_exit is None, "kept in memory by this test"
    end = last_exit(started.agent.actions)
    assert (end.reason, end.code, end.cause) == ("leaving for recipe new", 0, "switch")
    write_switch(started, Stage.DRAINING, drain_seconds=1)
    agent.loop.wait(0)


def test_a_blocked_node_starts_again_for_a_second_rollback(started: AgentUnderTest) -> None:
    first = make_rollback(known_good_entry(), "", "")
    time.sleep(0.002)
    second = make_rollback(known_good_entry(), "", "")
    assert first is not None
    assert second is not None
    agent = run_by(started, write_switch(started, Stage.IN_FORCE, chosen_at=first.chosen_at))
    agent.phase.enter(Phase.BLOCKED, "no")
    wait_for_end(agent.switching, started, 0.1)
    write_switch(started, Stage.IN_FORCE, to=chosen(started, "another"), chosen_at=second.chosen_at)
    with pytest.raises(OutdatedPlanError):
        wait_for_end(agent.switching, started)


def test_a_choice_that_can_t_be_read_now_is_no_other_one(started: AgentUnderTest) -> None:
    agent = run_by(started, write_switch(started, Stage.IN_FORCE))
    agent.phase.enter(Phase.BLOCKED, "no")
    write_switch(started, Stage.IN_FORCE)
    with files_left(0):
        wait_for_end(agent.switching, started, 0.1)
        assert begin(started) is None
        with pytest.raises(AwaitedError, match="Too many open files"):
            membership.current_switch(agent.context.configured, agent.host)
    assert started.events.lines[-1].startswith(
        "state.read.failed reason=/var/lib/sparkd/switch.json can't be read: Too"
    )


def test_a_choice_holds_while_the_recipe_that_it_replaces_may_come_by_a_late_mount(started: AgentUnderTest) -> None:
    configured, host = Settings(engine=Engine(recipe="tiny-cpu")), started.agent.host
    switch = write_switch(started, Stage.IN_FORCE, replaces=membership.fingerprint_config(configured, host))
    folder = Path(host.files.root, "etc/sparkd/recipes")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(folder.with_name("share"))
    with pytest.raises(AwaitedError, match="recipes: is a link"):
        membership.fingerprint_config(configured, host)
    assert membership.current_switch(configured, host) == switch


def test_a_plan_whose_time_is_over_is_left_and_more_time_keeps_it(started: AgentUnderTest) -> None:
    agent = run_by(started, write_switch(started, Stage.IN_FORCE, until=FAR_AHEAD))
    wait_for_end(agent.switching, started, 0.1)
    for until, shown in (("2998-01-01T00:00:00+00:00", "recipe new until 2998-01-01 00:00 UTC"), ("", "recipe new")):
        write_switch(started, Stage.IN_FORCE, until=until)
        wait_for_end(agent.switching, started, 1.5)
        assert [finding.reason for finding in started.report.findings] == [
            f"instead of {CONFIGURED}, {shown} is in force"
        ]
    write_switch(started, Stage.IN_FORCE, until=LONG_AGO)
    with pytest.raises(SwitchRequested, match=f"leaving for {CONFIGURED}"):
        wait_for_end(agent.switching, started)
    assert read_stage(started) is Stage.RETURNING


def start_clocked(node: AgentUnderTest, switch: Switch) -> tuple[Switching, list[float]]:
    """The watch of a process that was started with this choice, and its clock."""
    seconds = [1000.0]
    return Switching(run_by(node, switch), lambda: seconds[0]), seconds


@pytest.mark.parametrize("until", [FAR_AHEAD, ""])
def test_an_agent_that_takes_a_rank_over_knows_the_end_of_its_plan_by_the_file(
    started: AgentUnderTest, until: str
) -> None:
    kept = write_switch(started, Stage.IN_FORCE, until=LONG_AGO)
    longer = write_switch(started, Stage.IN_FORCE, until=until)  # while the agent before it ran
    agent = started.remake(context=replace(started.agent.context, switch=kept), switch_seen=object())
    wait_for_end(agent.switching, started, 0.5)
    assert read_switch(started) == agent.switching.switch == longer


def test_a_new_plan_that_stays_blocked_without_a_break_is_given_up(started: AgentUnderTest) -> None:
    switching, seconds = start_clocked(started, write_switch(started, Stage.TRYING, 1))
    started.agent.phase.enter(Phase.BLOCKED, "image: missing")
    for _ in range(2):
        switching.watch()
        seconds[0] += BLOCKED_SECONDS - 1
        started.agent.phase.enter(Phase.PREFLIGHT)
        switching.watch()  # not blocked: the time begins again
        started.agent.phase.enter(Phase.BLOCKED, "image: missing")
        switching.watch()
    seconds[0] += BLOCKED_SECONDS + 1
    with pytest.raises(NotReadyError, match="blocked for 120 s: image: missing"):
        switching.watch()


@pytest.mark.parametrize("phase", [phase for phase in Phase if PHASES[phase].ahead])
def test_a_new_plan_that_is_not_launched_in_time_is_given_up(started: AgentUnderTest, phase: Phase) -> None:
    """Whatever is awaited: docker, a node that is off, one that refuses connections."""
    switching, seconds = start_clocked(started, write_switch(started, Stage.TRYING, 1))
    started.agent.phase.enter(phase, "waiting for spark2, where no sparkd runs")
    seconds[0] += AWAITED_SECONDS + 1
    with pytest.raises(NotReadyError, match="not launched within 900 s: waiting for spark2") as given_up:
        switching.watch()
    started.agent.phase.enter(Phase.LOADING)
    switching.watch()
    assert shutdown_on_error(started.agent, None, given_up.value) is ExitCode.NOT_READY
    assert read_switch(started) is None


def test_a_choice_without_a_notice_is_seen_within_a_minute(started: AgentUnderTest) -> None:
    """Its writer was killed before the notice, or /run is full."""
    switching, seconds = start_clocked(started, write_switch(started, Stage.IN_FORCE))
    files = started.agent.host.files
    chosen_by_hand = replace(write_switch(started, Stage.DRAINING), chosen_at="2026-02-02")
    compare_and_swap(
        files, FILE, FILE.read(files), replace(chosen_by_hand, stage=Stage.IN_FORCE, chosen_at="2026-01-01")
    )
    wait_for_end(switching, started, 0.1)
    Tree(Path(files.root)).file(FILE.path, FILE.encode(chosen_by_hand))
    wait_for_end(switching, started, 0.1)
    seconds[0] += 61
    with pytest.raises(SwitchRequested):
        wait_for_end(switching, started)


def test_a_choice_whose_step_a_full_disk_has_kept_from_being_written_is_no_other_one(started: AgentUnderTest) -> None:
    switching, seconds = start_clocked(started, write_switch(started, Stage.DRAINING))
    started.agent.phase.enter(Phase.BLOCKED, "the disk is full")
    seconds[0] += 61
    wait_for_end(switching, started, 0.2)


def test_a_choice_that_cannot_be_read_is_reported(started: AgentUnderTest) -> None:
    switching, seconds = start_clocked(started, write_switch(started, Stage.IN_FORCE))
    Tree(Path(started.agent.host.files.root)).file(FILE.path, "{")
    seconds[0] += 61

    def reports() -> list[str]:
        wait_for_end(switching, started, 0.02)
        return [line.partition(" ")[0] for line in started.events.lines if "switch.json" in line]

    until_true(reports)
    assert reports() == ["state.read.failed"]


def test_a_plan_in_force_awaits_docker_and_other_nodes_without_a_limit(started: AgentUnderTest) -> None:
    switching, seconds = start_clocked(started, write_switch(started, Stage.IN_FORCE))
    seconds[0] += AWAITED_SECONDS + 1
    started.agent.phase.enter(Phase.AWAITING_DOCKER)
    switching.watch()


async def fails(error: Exception) -> None:
    raise error


def test_a_bug_while_an_engine_drains_leaves_no_rank(started: AgentUnderTest) -> None:
    agent = started.agent
    agent.phase.enter(Phase.SERVING)
    with running(agent) as (rank, process):
        agent.loop.spawn(fails(ZeroDivisionError("of a task")))
        with pytest.raises(ZeroDivisionError):
            shutdown_on_request(agent, rank, SwitchRequested(write_switch(started, Stage.DRAINING)))
        assert process.wait(1) == -signal.SIGTERM
    assert any(line.startswith("switch.drain.started") for line in started.events.lines)


def test_a_disk_that_fails_while_an_engine_drains_ends_only_the_drain(started: AgentUnderTest) -> None:
    agent = started.agent
    agent.phase.enter(Phase.SERVING)
    with running(agent) as (rank, process):
        agent.loop.spawn(fails(OSError(errno.EIO, "of a task")))
        shutdown_on_request(agent, rank, SwitchRequested(write_switch(started, Stage.DRAINING)))
        assert process.wait(1) == -signal.SIGTERM
    assert started.report.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("error", "goes_back", "code"),
    [
        (EngineEndedError("boom"), True, ExitCode.ENGINE_ENDED),
        (NotReadyError("its smoke test failed"), True, ExitCode.NOT_READY),
        (NeedsPersonError("reboot"), True, ExitCode.NOT_READY),
        (PeerLostError("rank 1 failed", cause=Cause.PEER_FAILED), True, ExitCode.PEER_LOST),
        (PeerLostError("rank 1 is silent", cause=Cause.PEER_SILENT), False, ExitCode.PEER_LOST),
        (OutdatedPlanError("devices"), False, ExitCode.BLOCKED),
    ],
)
def test_a_failure_of_the_new_plan_itself_brings_the_old_one_back(
    started: AgentUnderTest, error: SparkdError, goes_back: bool, code: ExitCode
) -> None:
    run_try(started)
    assert shutdown_on_error(started.agent, None, error) is code, "systemd starts the next process"
    end = last_exit(started.agent.actions)
    if goes_back:
        assert read_switch(started) is None
        assert end.reason == f"back to what is configured, recipe new did not come up: {error.reason}"
        assert end.cause == Cause.SWITCH_FAILED
    else:
        assert (end.reason, end.cause) == (error.reason, error.cause)


def test_a_stop_and_a_new_configuration_do_not_count_as_tries(started: AgentUnderTest) -> None:
    for end in (lambda: shutdown_on_error(started.agent, None, OutdatedPlanError("x")),
                lambda: shutdown_on_request(started.agent, None, StopRequested())):  # fmt: skip
        run_try(started)
        end()
        switch = read_switch(started)
        assert switch is not None
        assert (switch.stage, switch.tries) == (Stage.TRYING, 0)


def test_a_failure_of_a_plan_in_force_is_an_ordinary_one(started: AgentUnderTest) -> None:
    run_by(started, write_switch(started, Stage.IN_FORCE))
    error = BlockedError("plan-lint: no")
    shutdown_on_error(started.agent, None, error)
    assert last_exit(started.agent.actions).reason == "plan-lint: no"


def test_a_plan_that_somebody_chose_during_a_try_is_not_overwritten(started: AgentUnderTest) -> None:
    run_try(started)
    other = write_switch(started, Stage.DRAINING, chosen_at="2026-02-02")
    started.agent.switching.put_in_force()
    assert read_switch(started) == other


class Overtaken(MemoryActions):
    """Somebody chooses again between each look at the file and the first write."""

    other: Switch | None = None

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        if self.other is not None:
            compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), self.other)
            self.other = None
        return super().compare_and_swap(file, before, after)


def test_a_plan_that_somebody_chooses_while_a_step_is_written_stays(started: AgentUnderTest) -> None:
    actions = Overtaken(started.agent.host, started.agent.loop, "overtaken")
    run_try(started)
    agent = started.remake(actions=actions)
    actions.other = replace(write_switch(started, Stage.TRYING, 1), stage=Stage.DRAINING, chosen_at="2026-02-02")
    other = actions.other
    agent.switching.put_in_force()
    assert read_switch(started) == other
    write_switch(started, Stage.DRAINING)
    actions.other = replace(other, to=chosen(started, "another"))
    begun, _ = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    assert begun == read_switch(started) == replace(other, stage=Stage.TRYING, tries=1, to=chosen(started, "another"))


class Followed(MemoryActions):
    """Somebody chooses again right after each write."""

    other: Switch | None = None

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        done = super().compare_and_swap(file, before, after)
        if self.other is not None:
            compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), self.other)
        return done


def test_a_plan_that_somebody_chooses_right_after_a_step_is_seen(started: AgentUnderTest) -> None:
    actions = Followed(started.agent.host, started.agent.loop, "followed")
    run_try(started)
    agent = started.remake(actions=actions)
    actions.other = replace(write_switch(started, Stage.TRYING, 1), stage=Stage.DRAINING, chosen_at="2026-02-02")
    agent.switching.put_in_force()
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, started)
    write_switch(started, Stage.DRAINING)
    begun, stamp = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    agent = started.remake(context=replace(agent.context, switch=begun), switch_seen=stamp)
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, started)


def test_a_process_does_not_take_its_own_step_for_a_choice(started: AgentUnderTest) -> None:
    agent = started.agent
    for stage in (Stage.DRAINING, Stage.TRYING, Stage.RETURNING):
        write_switch(started, stage, TRIES)
        _, stamp = begin_switch(agent.context.configured, agent.host, agent.actions, agent.events)
        assert stamp == stamp_switch(agent.host)


@pytest.mark.parametrize(("phase", "stage"), [(Phase.BLOCKED, Stage.TRYING), (Phase.FAILED, None)])
def test_a_worker_that_is_blocked_ends_no_try_and_one_that_failed_does(
    started: AgentUnderTest, phase: Phase, stage: Stage | None
) -> None:
    switch = write_switch(started, Stage.TRYING, 1)
    peers = {1: SilentPeer(1)}
    peers[1].status = status(answer=report(1, phase=phase))
    monitor = PeerMonitor(peers, started.agent.loop.start, 20.0)
    context = replace(started.agent.context, switch=switch)
    agent = started.remake(context=context, switch_seen=stamp_switch(started.agent.host), monitor=monitor)
    agent.switching.end_try(End("rank 1 ended", int(ExitCode.PEER_LOST), cause=Cause.PEER_FAILED))
    assert read_stage(started) is stage


def test_a_plan_that_works_is_in_force_and_its_finding_says_so(started: AgentUnderTest) -> None:
    run_try(started)
    started.agent.switching.put_in_force()
    assert read_stage(started) is Stage.IN_FORCE
    assert [finding.reason for finding in started.report.findings] == [
        "instead of what is configured, recipe new is in force"
    ]


class ReadOnlyDisk(FullDisk):
    def _require_room(self) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("actions", "reason", "hint"),
    [
        (FullDisk, "No space left on device", "df -h /var/lib/sparkd"),
        (ReadOnlyDisk, "Read-only file", "why it fails, or is read-only: sudo dmesg"),
    ],
)
def test_a_launch_that_cannot_be_counted_is_blocked_with_the_disks_own_reason(
    started: AgentUnderTest, actions: type[MemoryActions], reason: str, hint: str
) -> None:
    agent = started.remake(actions=actions(started.agent.host, started.agent.loop, "a"))
    with pytest.raises(BlockedError, match=f"bounds crash loops: {reason}") as blocked:
        launch(agent)
    assert blocked.value.hint == hint


def test_a_plan_that_works_while_the_disk_is_full_is_in_force_once_there_is_room(started: AgentUnderTest) -> None:
    run_try(started)
    actions = started.agent.actions
    full = started.remake(actions=FullDisk(started.agent.host, started.agent.loop, "full"))
    full.switching.put_in_force()
    full.proving.begin()
    full.proving.tick()
    assert sum("state.write.failed" in line and "switch.json" in line for line in started.events.lines) == 1
    agent = started.remake(actions=actions)
    agent.proving.begin()
    assert agent.switching.tried
    agent.proving.tick()
    assert read_stage(started) is Stage.IN_FORCE


def test_a_choice_that_cannot_be_read_any_more_is_logged_once_while_its_plan_serves(started: AgentUnderTest) -> None:
    run_try(started)
    Tree(Path(started.agent.host.files.root)).file(FILE.path, "{")
    for _ in range(3):
        started.agent.proving.tick()
    assert sum("state.read.failed" in line for line in started.events.lines) == 1


def test_a_step_that_a_read_only_disk_does_not_take_is_logged_with_what_to_look_at(started: AgentUnderTest) -> None:
    agent = started.agent
    write_switch(started, Stage.DRAINING)
    disk = ReadOnlyDisk(agent.host, agent.loop, "read-only")
    begin_switch(agent.context.configured, agent.host, disk, agent.events)
    (line,) = (line for line in started.events.lines if line.startswith("state.write.failed file=switch.json"))
    assert line.endswith("reason=Read-only file system hint=why it fails, or is read-only: sudo dmesg")


def test_no_plan_is_launched_without_its_try_where_a_full_disk_kept_that_from_being_written(
    started: AgentUnderTest,
) -> None:
    agent = started.agent
    write_switch(started, Stage.DRAINING)
    full = FullDisk(agent.host, agent.loop, "full")
    stamp = begin_switch(agent.context.configured, agent.host, full, agent.events)[1]
    (line,) = (line for line in started.events.lines if line.startswith("state.write.failed"))
    assert line.startswith("state.write.failed file=switch.json reason=No space left on device hint=df -h"), line
    node = membership.resolve_context(agent.context.configured, None, agent.host)
    agent = started.remake(context=node, switch_seen=stamp)
    agent.switching.settle()
    with pytest.raises(OutdatedPlanError, match=r"switch.json could not be written"):
        launch(agent)
    run_try(started)
    started.agent.switching.raise_if_unwritten()
