"""The row that an agent keeps of its launch: begun, filled and ended; and a history that fails costs an event only."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone, running

from sparkd.agent.actions import history as store
from sparkd.agent.actions.files import hold_write_lock
from sparkd.agent.daemon.history import LaunchRow
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import PATH, Launch, Row, Smoke
from sparkd.base.state.launch_history import End
from sparkd.base.status.figures import ActivityReport

END = End("the engine ended", 13, cause="engine-ended")


@pytest.fixture
def begun(tree: Tree) -> Iterator[AgentUnderTest]:
    tree.folder("/var/lib/sparkd")
    with agent_under_test(tree, 0, alone()) as node:
        node.set_plan("agreed", **dict(node.agent.plan.shared))
        yield node


def rows(node: AgentUnderTest, count: int = 1) -> tuple[Row, ...]:
    """What the history has, once there are so many rows."""
    deadline = time.monotonic() + 5
    while len(stored := store.read(node.agent.host.files)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return stored


def test_a_launch_is_there_before_its_container_and_has_its_end_at_once(begun: AgentUnderTest) -> None:
    agent, seconds = begun.agent, [0.0]
    launch_row = LaunchRow(agent, agent.agreed, lambda: seconds[0])
    launch_row.begin()
    (row,) = rows(begun)
    assert isinstance(row, Launch)
    assert row.id == agent.rank_id
    assert row.plan == "agreed"
    assert row.end is None
    with running(agent) as (rank, _):
        launch_row.note_ready(rank)
    seconds[0] = 60
    for rate in (12.5, 0.0, 37.5):
        launch_row.note_activity(ActivityReport(1 if rate else 0, 0, 5.0, rate, 0.1, draft_acceptance=0.6))
    launch_row.note_activity(ActivityReport(0, 0, 5.0, 1.0, 0.1))  # of a canary
    launch_row.end(None, END)
    (row,) = store.read(agent.host.files)
    assert isinstance(row, Launch)
    assert row.first_tokens_per_second == 12.5
    assert row.last_tokens_per_second == 37.5
    assert row.draft_acceptance == 0.6
    assert row.end == END
    assert round(row.served_seconds or 0) == 60


@pytest.mark.parametrize(("last", "cause"), [(None, "agent-killed"), (End("?"), "agent-killed"), (END, END.cause)])
def test_the_next_process_closes_what_was_left_and_knows_the_totals(
    begun: AgentUnderTest, last: End | None, cause: str
) -> None:
    agent = begun.agent
    agent.launch_row.begin()
    rows(begun)
    agent.launch_row.recall(last)
    (row,) = agent.launch_row.past.launches
    assert row.end is not None
    assert row.end.cause == cause
    assert agent.launch_row.past.totals == {"launches": 1, f"ends.{cause}": 1}


def test_a_smoke_test_is_kept_without_secrets(begun: AgentUnderTest) -> None:
    begun.agent.launch_row.keep_smoke(("api_key=abcdefgh\x1b[31m said",))
    (row,) = rows(begun)
    assert isinstance(row, Smoke)
    assert row.launch == begun.agent.rank_id
    assert row.bad == 1
    assert "abcdefgh" not in row.faults[0]
    assert row.faults[0].isprintable()


def test_a_history_that_cannot_be_written_is_one_event_for_each_way(begun: AgentUnderTest) -> None:
    Tree(Path(begun.agent.host.files.root)).folder(PATH)
    begun.agent.launch_row.recall(None)
    begun.agent.launch_row.begin()
    begun.agent.launch_row.end(None, END)
    failed = [line for line in begun.events.lines if line.startswith("history.")]
    assert [line.partition(" ")[0] for line in failed] == ["history.read.failed", "history.write.failed"]
    assert "is no plain file" in failed[0]


def test_a_broken_file_is_replaced_by_the_row(begun: AgentUnderTest) -> None:
    Tree(Path(begun.agent.host.files.root)).file(PATH, "rubbish " * 1000)
    begun.agent.launch_row.recall(None)
    begun.agent.launch_row.begin()
    begun.agent.launch_row.end(None, END)
    assert len(store.read(begun.agent.host.files)) == 1
    assert any(line.startswith("history.file.replaced") for line in begun.events.lines)


def test_what_was_before_is_known_where_a_reader_holds_the_file(begun: AgentUnderTest) -> None:
    files = begun.agent.host.files
    earlier = Launch("1", "2026-11-01", 0, "d", begun.agent.plan.recipe, Facts({}, {}, {}), load_seconds=50)
    store.write(files, earlier)
    with closing(sqlite3.connect(f"file:{files.real(PATH)}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchone()
        begun.agent.launch_row.recall(None)
    assert [launch.load_seconds for launch in begun.agent.launch_row.past.launches] == [50]
    assert begun.agent.reporter.report.launches == 1


def test_writes_that_hang_hold_no_run_back(begun: AgentUnderTest) -> None:
    begun.agent.launch_row.begin()
    rows(begun)  # it is to be closed, which is a write too
    with hold_write_lock(Path(begun.agent.host.files.real(PATH))):
        began = unstalled()
        begun.agent.launch_row.recall(None)
        begun.agent.launch_row.begin()
        begun.agent.launch_row.keep_smoke(())
        begun.agent.launch_row.end(None, END)
        took = unstalled() - began
    assert took < 1.5
    assert sum("history.write.failed" in line for line in begun.events.lines) == 1
