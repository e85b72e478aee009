"""The launch history: which launches count, why the last process ended, and what the agent records when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, MemoryActions, agent_under_test, alone

from sparkd.agent import shutdown
from sparkd.agent.serving import ProvingPeriod
from sparkd.agent.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.host import Host
from sparkd.host.docker import AWAY, DockerFacts
from sparkd.lib import errors
from sparkd.lib.errors import Cause, EngineEndedError, SparkdError
from sparkd.lib.text import Redactor
from sparkd.state import launch_history
from sparkd.state.file import LIMIT_BYTES
from sparkd.state.launch_history import BACKOFF_SECONDS, FILE, KILLED, LOADING, SERVING, Boot, End, LaunchHistory

PLAN, NOW = "d1", "2026-01-01T00:00:00.000+00:00"
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


def test_a_cause_that_only_a_later_version_knows_is_read() -> None:
    history = replace(EMPTY, last_exit=End("boom", 13, cause="struck-by-lightning"))
    assert FILE.decode(FILE.encode(history).encode()) == history


OLD = {
    "launches.json": """{"schema": 1, "failures": {"d1": 1, "d2": 2}, "open": {"digest": "d1", "boot_id": "b2"},
 "last": {"d1": {"reason": "boom", "code": 13}, "d2": {"reason": "its agent ended without a word", "code": null}}}""",
    "boots.json": """{"schema": 1, "tried": {"kernel": "7.0", "weights.\\udcff": "\\u00e4"}, "good": {"kernel": "6.17"},
 "boots": [{"boot_id": "b1", "digest": "d1", "phase": "serving", "open": false},
  {"boot_id": "b2", "digest": "d1", "phase": "loading", "open": true}]}""",
    "last-exit.json": """{"schema": 1, "code": 13, "reason": "the engine ended: boom", "hint": "look",
 "phase": "loading", "at": "2026-11-22T08:43:06.341+00:00"}""",
}
"""As the version before wrote them."""
MIGRATED = LaunchHistory(
    failures={"d1": 1, "d2": 2},
    last={"d1": BOOM, "d2": End("its agent ended without a word")},
    open=launch_history.Open("d1", "b2"),
    boots=(Boot("b1", "d1", SERVING, open=False), Boot("b2", "d1", LOADING, open=True)),
    tried={"kernel": "7.0", "weights.\udcff": "ä"},
    good={"kernel": "6.17"},
    last_exit=End("the engine ended: boom", 13, "look", "loading", "2026-11-22T08:43:06.341+00:00"),
)


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    """In boot `boot`, with a launch of its plan under way, after a boot that ended with its machine."""
    with agent_under_test(tree, 0, alone()) as made:
        digest = made.agent.plan.counted_as
        history = EMPTY.record_launch("d", "before", {}).record_launch(digest, "boot", {"kernel": "6.17"})
        on_disk(made).file(FILE.path, FILE.encode(history))
        yield made


def on_disk(made: AgentUnderTest) -> Tree:
    return Tree(Path(made.agent.host.files.root))


def written(made: AgentUnderTest) -> LaunchHistory:
    assert isinstance(made.agent.actions, MemoryActions)
    return FILE.decode(made.agent.actions.written[FILE.name].encode())


def test_the_files_of_the_version_before_are_read_until_there_is_the_new_one(started: AgentUnderTest) -> None:
    tree, reports = on_disk(started), list[str]()
    new = tree.root / FILE.path.lstrip("/")
    for name, text in OLD.items():
        tree.file(f"/var/lib/sparkd/{name}", text)
    files = started.agent.host.files
    assert launch_history.read_history(files, reports.append) != MIGRATED
    new.unlink()
    assert launch_history.read_history(files, reports.append) == launch_history.load_history(files) == MIGRATED
    tree.file("/var/lib/sparkd/launches.json", "{")
    kept = launch_history.read_history(files, reports.append)
    assert kept == replace(MIGRATED, failures={}, last={}, open=None), "one that is broken takes no other along"
    assert len(reports) == 1


def test_the_first_start_of_this_version_counts_a_killed_agent_and_removes_the_old_files(
    started: AgentUnderTest,
) -> None:
    tree, actions = on_disk(started), started.agent.actions
    (tree.root / FILE.path.lstrip("/")).unlink()
    for name, text in OLD.items():
        tree.file(f"/var/lib/sparkd/{name}", text.replace('"b2"', '"boot"'))
    started.agent.record_start()
    after = written(started)
    assert (after.failures, after.last_failure("d1")) == ({"d2": 2, "d1": 2}, KILLED)
    assert (after.good, [one.open for one in after.boots]) == (MIGRATED.good, [False, False])
    assert after.last_cause is not None
    assert after.last_cause == End(KILLED, at=after.last_cause.at, cause="agent-killed"), "until its end is recorded"
    assert isinstance(actions, MemoryActions)
    assert {name: actions.written[name] for name in OLD} == dict.fromkeys(OLD, "")


def test_where_nothing_can_be_written_the_old_files_stay(started: AgentUnderTest) -> None:
    class FullDisk(MemoryActions):
        def write_state(self, name: str, text: str, mode: int) -> None:
            raise OSError(28, "No space left on device")

    agent = started.agent
    actions = FullDisk(agent.host, agent.loop, "x")
    agent = replace(agent, actions=actions)
    agent.record_start()
    agent.record_start()
    assert actions.written == {}
    assert len([line for line in started.events.lines if line.startswith("state.write.failed")]) == 1


def test_an_unusable_file_is_reported_and_the_agent_continues(started: AgentUnderTest) -> None:
    on_disk(started).file(FILE.path, "{")
    assert started.agent.read_launches() == EMPTY
    assert started.events.lines[-1].startswith("state.read.failed reason=/var/lib/sparkd/launch-history.json can't be")
    (on_disk(started).root / FILE.path.lstrip("/")).unlink()
    on_disk(started).folder(FILE.path)
    assert started.agent.read_launches() == EMPTY


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
    after = written(started)
    assert after.failures == ({agent.plan.counted_as: 1} if counted else {})
    assert [(one.phase, one.open) for one in after.boots] == [(LOADING, True), (LOADING, False)]
    last = after.last_cause
    assert last is not None
    assert (after.open, str(last), last.cause) == (None, f"reason (exit {int(error.code)})", error.cause)
    on_disk(started).file(FILE.path, FILE.encode(after))
    shutdown_on_error(agent, None, error)
    assert written(started).failures == after.failures, "nothing was launched since"


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
    started: AgentUnderTest, monkeypatch: pytest.MonkeyPatch, error: SparkdError, cause: Cause
) -> None:
    monkeypatch.setattr(shutdown, "HANG_SECONDS", 0.1)
    answers = threading.Event()

    def hangs() -> DockerFacts:
        answers.wait(30)
        return AWAY

    hung = replace(started.agent, host=Host(started.agent.host.files.root, hangs))
    shutdown_on_error(hung, None, error)
    answers.set()
    last = written(started).last_cause
    assert last is not None
    assert last.cause == cause
    assert last.reason.startswith("dockerd runs and does not answer: ") is (cause is Cause.DOCKER_HUNG)


def test_a_stop_counts_nothing_and_closes_the_launch(started: AgentUnderTest) -> None:
    shutdown_on_request(started.agent, None)
    after = written(started)
    assert (after.failures, after.open, after.last_cause) == ({}, None, None)
    assert [(one.phase, one.open) for one in after.boots] == [(LOADING, True), (LOADING, False)]


def test_after_a_person_is_needed_the_next_launch_starts_at_zero(started: AgentUnderTest) -> None:
    shutdown_on_error(started.agent, None, errors.NeedsPersonError("reboot this node"))
    assert (written(started).boots, written(started).failures) == ((), {})


def test_a_good_start_is_recorded_with_its_facts(started: AgentUnderTest) -> None:
    ProvingPeriod(started.agent)
    assert [(one.boot_id, one.phase, one.open) for one in written(started).boots] == [("boot", SERVING, True)]
    assert written(started).good == {"kernel": "6.17"}


def test_a_secret_in_a_cause_is_not_kept(started: AgentUnderTest) -> None:
    agent = replace(started.agent, redact=Redactor(("hunter2hunter2",)))
    shutdown_on_error(agent, None, EngineEndedError("no model for hunter2hunter2", "is hunter2hunter2 right?"))
    assert str(written(started).last_cause) == "no model for *** (exit 13)"
    assert "hunter2" not in FILE.encode(written(started))


def test_nothing_is_written_where_nothing_has_changed(started: AgentUnderTest) -> None:
    assert started.agent.record(lambda launches: launches)
    assert isinstance(started.agent.actions, MemoryActions)
    assert FILE.name not in started.agent.actions.written
