"""What the agent records of launches and ends, and when; a file that can't be read or written."""

import threading
import time
from collections.abc import Iterator
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
from sparkd.agent.daemon.evidence import EvidenceSearch
from sparkd.agent.daemon.shutdown import shutdown_on_error, shutdown_on_request
from sparkd.agent.daemon.state_store import StateStore
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.lib import errors
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import Cause, EngineEndedError, SparkdError
from sparkd.base.lib.redaction import Redaction
from sparkd.base.state.launch_history import FILE, KILLED, LOADING, SERVING, Boot, End, LaunchHistory


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    """In boot `boot`, with a launch of its plan under way, after a boot that ended with its machine."""
    with agent_under_test(tree, 0, alone()) as made:
        digest = made.agent.plan.backoff_key
        history = LaunchHistory().record_launch("d", "before", {}).record_launch(digest, "boot", {"kernel": "6.17"})
        on_disk(made).file(FILE.path, FILE.encode(history))
        yield made


def on_disk(made: AgentUnderTest) -> Tree:
    return Tree(Path(made.agent.host.files.root))


def history_of(made: AgentUnderTest) -> LaunchHistory:
    return written(made.agent.actions, FILE)


BEGUN_AT = "2026-11-01T00:00:00+00:00"


def begin(store: StateStore, boot_id: str) -> None:
    store.record(lambda launches: launches.recover(boot_id, BEGUN_AT))


def test_a_start_counts_an_agent_that_was_killed(started: AgentUnderTest) -> None:
    digest = started.agent.plan.backoff_key
    begin(started.agent.store, started.agent.boot_id)
    after = history_of(started)
    assert after.failures == {digest: 1}
    assert after.last_failure(digest) == KILLED
    assert [boot.open for boot in after.boots] == [True, False], "what ended with its machine stays so"
    assert after.last_cause == End(KILLED, at=BEGUN_AT, cause="agent-killed"), "until its end is recorded"


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
    assert started.agent.store.read_launches() == LaunchHistory()
    assert started.events.lines[-1].startswith("state.read.failed reason=/var/lib/sparkd/launch-history.json can't be")


def test_a_folder_in_place_of_the_file_lets_the_agent_begin_and_blocks_its_launch(started: AgentUnderTest) -> None:
    (on_disk(started).root / FILE.path.lstrip("/")).unlink()
    on_disk(started).folder(FILE.path)
    assert started.agent.store.read_launches() == LaunchHistory()
    with pytest.raises(errors.BlockedError, match=r"launch-history\.json is a folder") as blocked:
        started.agent.store.require_launches()
    assert blocked.value.hint == f"sudo mv {FILE.path} {FILE.path}.folder"


def test_a_file_that_can_t_be_read_now_is_neither_empty_nor_written_over(started: AgentUnderTest) -> None:
    store = started.agent.store
    with files_left(0):
        assert not store.record(lambda launches: launches.record_launch("d1", "boot", {}))
        with pytest.raises(errors.BlockedError, match=r"launch-history\.json can't be read: Too many open files"):
            store.require_launches()
    assert isinstance(started.agent.actions, MemoryActions)
    assert FILE.name not in started.agent.actions.written
    assert store.require_launches() == FILE.decode(on_disk(started).root.joinpath(FILE.path.lstrip("/")).read_bytes())


OF_THIS_NODE = (
    errors.LaunchError,
    EngineEndedError,
    errors.StalledError,
    errors.NotReadyError,
    errors.MemoryGuardError,
    SparkdError,
)
OF_OTHERS = (errors.PeerLostError, errors.BlockedError, errors.ConfigError)


@pytest.mark.parametrize("kind", OF_THIS_NODE + OF_OTHERS)
def test_an_error_closes_the_launch_and_is_recorded_with_code_and_cause(
    started: AgentUnderTest, kind: type[SparkdError]
) -> None:
    error = kind("reason")
    assert shutdown_on_error(started.agent, None, error) is error.code
    assert history_of(started).open is None
    assert not history_of(started).boots[-1].open
    last = last_exit(started.agent.actions)
    assert str(last) == f"reason (exit {int(error.code)})"
    assert last.cause == error.cause


@pytest.mark.parametrize("kind", OF_THIS_NODE)
def test_a_failure_of_this_node_counts_once_for_an_open_launch(
    started: AgentUnderTest, kind: type[SparkdError]
) -> None:
    for _ in ("launched", "not launched since"):
        shutdown_on_error(started.agent, None, kind("reason"))
        assert history_of(started).failures == {started.agent.plan.backoff_key: 1}
        on_disk(started).file(FILE.path, FILE.encode(history_of(started)))


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_what_is_no_failure_of_this_node_is_not_counted(started: AgentUnderTest, kind: type[SparkdError]) -> None:
    shutdown_on_error(started.agent, None, kind("reason"))
    assert history_of(started).failures == {}


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


def test_a_dockerd_that_answers_too_late_hangs_though_the_answer_is_there_once_the_rank_is_gone(
    started: AgentUnderTest,
) -> None:
    def answer_late() -> DockerFacts:
        time.sleep(0.1)
        return AWAY

    host = Host(started.agent.host.files.root, answer_late)
    agent = replace(started.agent, host=host, pace=Pace(last_look_seconds=0.05))
    search = EvidenceSearch(agent, None, EngineEndedError("it named no cause"))
    time.sleep(0.3)
    assert search.gather().docker_hangs


def test_a_stop_counts_nothing_and_closes_the_launch(started: AgentUnderTest) -> None:
    shutdown_on_request(started.agent, None, StopRequested())
    after = history_of(started)
    assert after.failures == {}
    assert after.open is None
    assert after.last_cause is None
    assert after.boots[-1] == Boot("boot", started.agent.plan.backoff_key, LOADING, open=False)


def test_after_a_person_is_needed_the_next_launch_starts_at_zero(started: AgentUnderTest) -> None:
    shutdown_on_error(started.agent, None, errors.NeedsPersonError("reboot this node"))
    assert history_of(started).boots == ()
    assert history_of(started).failures == {}


def test_a_good_start_is_recorded_with_its_facts(started: AgentUnderTest) -> None:
    started.agent.proving.begin()
    assert history_of(started).boots == (Boot("boot", started.agent.plan.backoff_key, SERVING, open=True),)
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
    assert [kind for kind, (_, secret) in PLANTED.items() if secret in "".join(shown)] == []


def test_nothing_is_written_where_nothing_has_changed(started: AgentUnderTest) -> None:
    assert started.agent.store.record(lambda launches: launches)
    assert isinstance(started.agent.actions, MemoryActions)
    assert FILE.name not in started.agent.actions.written
