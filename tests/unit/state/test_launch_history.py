"""The launch history: which launches count, why the last process ended, and what the agent records when."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import (
    AgentUnderTest,
    FullDisk,
    MemoryActions,
    agent_under_test,
    alone,
    last_exit,
    written,
)
from tests.unit.limits import files_left
from tests.unit.tools.test_planted_secrets import PLANTED

from sparkd.agent.daemon.context import Pace
from sparkd.agent.daemon.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.agent.daemon.state_store import StateStore
from sparkd.base.cluster.membership import load_switch
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.lib import errors
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import Cause, EngineEndedError, SparkdError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.state import launch_history
from sparkd.base.state.file import LIMIT_BYTES
from sparkd.base.state.launch_history import (
    BACKOFF_SECONDS,
    END_LENGTH,
    ENDS_KEPT,
    FAULT_LIMIT,
    FILE,
    IMAGES_KEPT,
    KILLED,
    LOADING,
    SERVING,
    AssertResult,
    End,
    LaunchHistory,
)
from sparkd.base.state.switch import FILE as SWITCH

PLAN, NOW = "d1", "2026-01-01T00:00:00.000+00:00"
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
BOOM = End("boom", 13)
EMPTY = LaunchHistory()


def failed(times: int) -> LaunchHistory:
    history = EMPTY
    for _ in range(times):
        history = history.begin(PLAN, "boot").record_failure(PLAN, BOOM).record_end("boot", BOOM)
    return history


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 5), (2, 15), (3, 60), (4, 300), (5, None), (9, None)])
def test_each_failure_makes_the_next_launch_wait_longer_and_the_sixth_needs_a_person(
    failures: int, seconds: int | None
) -> None:
    assert failed(failures).wait_seconds(PLAN) == seconds
    assert failed(failures).wait_seconds("d2") == 0
    forgiven = failed(failures).reset(PLAN)
    assert (forgiven.wait_seconds(PLAN), forgiven.last_failure(PLAN)) == (0, "")


def test_a_launch_left_open_by_a_killed_agent_counts_and_one_left_by_a_power_cut_does_not() -> None:
    left = EMPTY.record_launch(PLAN, "boot", {})
    killed, cut = left.recover("boot", NOW), left.recover("next boot", NOW)
    assert (killed.wait_seconds(PLAN), killed.last_failure(PLAN)) == (BACKOFF_SECONDS[1], KILLED)
    assert (cut.wait_seconds(PLAN), cut.open) == (0, None)
    assert [one.open for one in (*killed.boots, *cut.boots)] == [False, True], "the machine outlived the first alone"


def test_old_plans_and_boots_are_forgotten() -> None:
    history = EMPTY
    for number in range(20):
        history = history.record_launch(f"d{number}", f"boot{number}", {}).record_failure(f"d{number}", BOOM)
    assert list(history.failures) == list(history.last) == [f"d{number}" for number in range(4, 20)]
    assert [one.digest for one in history.boots] == [f"d{number}" for number in range(12, 20)]


def test_what_was_written_is_read_and_bounded() -> None:
    wide = "\U0001f600" * 5000
    history = EMPTY.record_launch(PLAN, "boot", {f"{number}.{wide}": wide for number in range(5000)}).record_serving(
        "boot"
    )
    for number in range(20):
        history = history.record_failure(f"d{number}", End(wide, 13, wide))
    for number in range(2 * IMAGES_KEPT):
        history = history.record_asserts(str(number), "true", AssertResult(wide[:FAULT_LIMIT], 1.5, NOW))
    assert FILE.decode(FILE.encode(history).encode()) == history
    assert len(FILE.encode(history)) < LIMIT_BYTES, "or the count of failures could not be read with it"


def test_a_reason_from_the_file_is_sanitized() -> None:
    reason = replace(failed(1), last={PLAN: End("\x1b[2J" + "x" * 5000)}).last_failure(PLAN)
    assert (len(reason), "\x1b" in reason) == (launch_history.REASON_LIMIT, False)
    assert failed(1).last_failure(PLAN) == "boom (exit 13)"


def test_the_next_process_reports_why_the_last_one_ended() -> None:
    stopped = End("stop requested", 0, cause=Cause.STOP_REQUESTED)
    ends = (None, End(KILLED), stopped, End("port 8000 is taken", 10, cause=Cause.BLOCKED), End("", 1))
    causes = [None, KILLED, None, "port 8000 is taken (exit 10)", " (exit 1)"]
    found = [replace(EMPTY, last_exit=end).last_cause for end in ends]
    assert [one and str(one) for one in found] == causes


def test_the_ends_of_a_day_that_nobody_requested_are_grouped_by_their_cause() -> None:
    def at(hours: float) -> str:
        return (NOON - timedelta(hours=hours)).isoformat()

    ends = (("boom", 13, 30.0), ("boom", 13, 5.0), ("stop requested", 0, 4.0), ("bang", 14, 3.0), ("boom", 13, 2.0))
    history = EMPTY
    for cause, code, hours in ends:
        history = history.recover("boot", at(hours)).record_end(
            "boot", End(cause * 99, code, at=at(hours), cause=cause)
        )
    found = history.restarts(NOON)
    assert [(one.cause, one.count, one.last) for one in found] == [("bang", 1, at(3)), ("boom", 2, at(2))]
    assert found[0].reason == ("bang" * 99)[:END_LENGTH]
    killed = history.recover("boot", at(1)).restarts(NOON)
    assert [(one.cause, one.count, one.reason) for one in killed][-1] == (Cause.AGENT_KILLED, 1, KILLED)


def test_many_ends_are_bounded() -> None:
    history = EMPTY
    for _ in range(3 * ENDS_KEPT):
        history = history.recover("boot", NOW).record_end("boot", BOOM)
    assert len(history.ends) == ENDS_KEPT


def test_a_cause_that_only_a_later_version_knows_is_read() -> None:
    history = replace(EMPTY, last_exit=End("boom", 13, cause="struck-by-lightning"))
    assert FILE.decode(FILE.encode(history).encode()) == history


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    """In boot `boot`, with a launch of its plan under way, after a boot that ended with its machine."""
    with agent_under_test(tree, 0, alone()) as made:
        digest = made.agent.plan.backoff_key
        history = EMPTY.record_launch("d", "before", {}).record_launch(digest, "boot", {"kernel": "6.17"})
        on_disk(made).file(FILE.path, FILE.encode(history))
        yield made


def on_disk(made: AgentUnderTest) -> Tree:
    return Tree(Path(made.agent.host.files.root))


def history_of(made: AgentUnderTest) -> LaunchHistory:
    return written(made.agent.actions, FILE)


def begin(store: StateStore, boot_id: str) -> None:
    store.record(lambda launches: launches.recover(boot_id, "2026-11-01T00:00:00+00:00"))


def test_a_start_counts_an_agent_that_was_killed(started: AgentUnderTest) -> None:
    digest = started.agent.plan.backoff_key
    begin(started.agent.store, started.agent.boot_id)
    after = history_of(started)
    assert (after.failures[digest], after.last_failure(digest)) == (1, KILLED)
    assert [one.open for one in after.boots] == [True, False], "what ended with its machine stays so"
    assert after.last_cause is not None
    assert after.last_cause == End(KILLED, at=after.last_cause.at, cause="agent-killed"), "until its end is recorded"


def test_a_full_disk_is_logged_once(started: AgentUnderTest) -> None:
    agent = started.agent
    actions = FullDisk(agent.host, agent.loop, "x")
    store = started.remake(actions=actions).store
    for _ in range(2):
        begin(store, agent.boot_id)
    assert actions.written == {}
    assert len([line for line in started.events.lines if line.startswith("state.write.failed")]) == 1


def test_an_unusable_file_is_reported_and_the_agent_continues(started: AgentUnderTest) -> None:
    on_disk(started).file(FILE.path, "{")
    assert started.agent.store.read_launches() == EMPTY
    assert started.events.lines[-1].startswith("state.read.failed reason=/var/lib/sparkd/launch-history.json can't be")
    (on_disk(started).root / FILE.path.lstrip("/")).unlink()
    on_disk(started).folder(FILE.path)
    assert started.agent.store.read_launches() == EMPTY
    with pytest.raises(errors.BlockedError, match=r"launch-history\.json is a folder") as blocked:
        started.agent.store.require_launches()
    assert blocked.value.hint == f"sudo mv {FILE.path} {FILE.path}.folder"


def test_a_folder_in_place_of_the_switch_is_awaited_with_what_moves_it_away(tree: Tree) -> None:
    tree.folder(SWITCH.path)
    with pytest.raises(errors.AwaitedError, match="is a folder") as awaited:
        load_switch(Host(tree.root), lambda _: None)
    assert awaited.value.hint == f"sudo mv {SWITCH.path} {SWITCH.path}.folder"


def test_a_file_that_can_t_be_read_now_is_neither_empty_nor_written_over(started: AgentUnderTest) -> None:
    store = started.agent.store
    with files_left(0):
        assert not store.record(lambda launches: launches.record_launch(PLAN, "boot", {}))
        with pytest.raises(errors.BlockedError, match=r"launch-history\.json can't be read: Too many open files"):
            store.require_launches()
    assert isinstance(started.agent.actions, MemoryActions)
    assert FILE.name not in started.agent.actions.written
    assert store.require_launches() == FILE.decode(on_disk(started).root.joinpath(FILE.path.lstrip("/")).read_bytes())


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        *((error("reason"), True) for error in (errors.LaunchError, EngineEndedError, errors.StalledError)),
        *((error("reason"), True) for error in (errors.NotReadyError, errors.MemoryGuardError, SparkdError)),
        *((error("reason"), False) for error in (errors.PeerLostError, errors.BlockedError, errors.ConfigError)),
    ],
    ids=str,
)
def test_a_failure_of_this_node_counts_once_for_an_open_launch(
    started: AgentUnderTest, error: SparkdError, counted: bool
) -> None:
    agent = started.agent
    assert shutdown_on_error(agent, None, error) is error.code
    after = history_of(started)
    assert after.failures == ({agent.plan.backoff_key: 1} if counted else {})
    assert [(one.phase, one.open) for one in after.boots] == [(LOADING, True), (LOADING, False)]
    last = last_exit(agent.actions)
    assert (after.open, str(last), last.cause) == (None, f"reason (exit {int(error.code)})", error.cause)
    on_disk(started).file(FILE.path, FILE.encode(after))
    shutdown_on_error(agent, None, error)
    assert history_of(started).failures == after.failures, "nothing was launched since"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (EngineEndedError("it named no cause"), Cause.DOCKER_HUNG),
        (errors.LaunchError("TimeoutError: docker", "df -h", cause=Cause.SYSTEM_ERROR), Cause.DOCKER_HUNG),
        (errors.StalledError("no answer"), Cause.DOCKER_HUNG),
        (EngineEndedError("RuntimeError: boom", cause=Cause.ENGINE_ERROR), Cause.ENGINE_ERROR),
        (errors.PeerLostError("rank 1 is gone"), Cause.PEER_LOST),
    ],
    ids=str,
)
def test_a_dockerd_that_does_not_answer_is_named_where_it_may_be_behind_the_error(
    started: AgentUnderTest, error: SparkdError, cause: Cause
) -> None:
    answers = threading.Event()

    def hangs() -> DockerFacts:
        answers.wait(30)
        return AWAY

    host = Host(started.agent.host.files.root, hangs)
    hung = replace(started.agent, host=host, pace=Pace(last_look_seconds=0.1))
    shutdown_on_error(hung, None, error)
    answers.set()
    last = last_exit(started.agent.actions)
    assert last.cause == cause
    assert last.reason.startswith("dockerd runs and does not answer: ") is (cause is Cause.DOCKER_HUNG)


def test_a_stop_counts_nothing_and_closes_the_launch(started: AgentUnderTest) -> None:
    shutdown_on_request(started.agent, None, StopRequested())
    after = history_of(started)
    assert (after.failures, after.open, after.last_cause) == ({}, None, None)
    assert [(one.phase, one.open) for one in after.boots] == [(LOADING, True), (LOADING, False)]


def test_after_a_person_is_needed_the_next_launch_starts_at_zero(started: AgentUnderTest) -> None:
    shutdown_on_error(started.agent, None, errors.NeedsPersonError("reboot this node"))
    assert (history_of(started).boots, history_of(started).failures) == ((), {})


def test_a_good_start_is_recorded_with_its_facts(started: AgentUnderTest) -> None:
    started.agent.proving.begin()
    assert [(one.boot_id, one.phase, one.open) for one in history_of(started).boots] == [("boot", SERVING, True)]
    assert history_of(started).good == {"kernel": "6.17"}


def test_a_secret_in_a_cause_is_not_kept(started: AgentUnderTest) -> None:
    agent = replace(started.agent, redact=Redaction(("hunter2hunter2",)))
    shutdown_on_error(agent, None, EngineEndedError("no model for hunter2hunter2", "is hunter2hunter2 right?"))
    assert str(history_of(started).last_cause) == "no model for *** (exit 13)"
    assert "hunter2" not in FILE.encode(history_of(started))


def test_no_likely_secret_of_a_cause_is_kept_or_logged(started: AgentUnderTest) -> None:
    """Of an agent as it is built: its file of mode 0644, its row in the history and its events."""
    text = "\n".join(text for text, _ in PLANTED.values())
    shutdown_on_error(started.agent, None, EngineEndedError(text, f"look at {text}"))
    written_texts = FILE.encode(history_of(started)), started.agent.reporter.published.text
    shown = [text.replace("\\", "") for text in written_texts]
    assert [kind for kind, (_, secret) in PLANTED.items() if any(secret in one for one in shown)] == []


def test_nothing_is_written_where_nothing_has_changed(started: AgentUnderTest) -> None:
    assert started.agent.store.record(lambda launches: launches)
    assert isinstance(started.agent.actions, MemoryActions)
    assert FILE.name not in started.agent.actions.written
