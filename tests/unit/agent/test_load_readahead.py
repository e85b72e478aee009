"""An agent lowers the disk's readahead for its load where the settings say so; a fault of it ends no run."""

from collections.abc import Iterator

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone

from sparkd.agent.daemon.readahead import lower_readahead, restore_readahead
from sparkd.base.config import Engine
from sparkd.base.lib.main_loop import never


@pytest.fixture
def lowering(tree: Tree) -> Iterator[AgentUnderTest]:
    """An agent that lowers readahead for its load, of a model that is not there."""
    engine = Engine(recipe="tiny-cpu", load_readahead_kib=8)
    with agent_under_test(tree, 0, alone().model_copy(update={"engine": engine})) as node:
        yield node


def test_a_readahead_that_cannot_be_set_is_logged_and_ends_no_launch(lowering: AgentUnderTest) -> None:
    lower_readahead(lowering.agent)
    (line,) = lowering.events.lines
    assert line.startswith("page_cache.readahead.failed reason=[Errno 2] No such file")


def test_where_no_thread_can_restore_readahead_that_is_logged(lowering: AgentUnderTest, no_thread: None) -> None:
    restore_readahead(lowering.agent)
    lowering.agent.loop.wait_until(never, 0.02, shielded=True)
    (failure,) = [line for line in lowering.events.lines if line.startswith("page_cache.restore.failed")]
    assert "can't start new thread" in failure


def test_without_the_setting_readahead_is_not_read(lone: AgentUnderTest) -> None:
    lower_readahead(lone.agent)
    assert lone.events.lines == []
