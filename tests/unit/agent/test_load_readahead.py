"""An agent lowers the disk's readahead for its load where the settings say so; a fault of it ends no run."""

from collections.abc import Iterator

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test
from tests.unit.cluster_nodes import settings as cluster_settings

from sparkd.agent.daemon.readahead import lower_readahead, restore_readahead
from sparkd.base.config import Engine, Settings
from sparkd.base.lib.main_loop import never


def settings(port: int, load_readahead_kib: int) -> Settings:
    engine = Engine(recipe="tiny-cpu-pair", load_readahead_kib=load_readahead_kib)
    return cluster_settings(addresses(2), port).model_copy(update={"engine": engine})


@pytest.fixture
def lowering(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    """An agent that lowers readahead for its load, of a model that is not there."""
    with agent_under_test(tree, 1, settings(port, 8)) as node:
        yield node


@pytest.fixture
def not_lowering(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    with agent_under_test(tree, 1, settings(port, 0)) as node:
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


def test_without_the_setting_readahead_is_not_read(not_lowering: AgentUnderTest) -> None:
    lower_readahead(not_lowering.agent)
    assert not_lowering.events.lines == []
