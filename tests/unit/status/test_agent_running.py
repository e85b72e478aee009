"""Whether the agent that wrote a report still runs."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.node_reports import HEAD_REPORT

from sparkd.base.host.files import Files
from sparkd.base.status.model import agent_running

WRITTEN = replace(HEAD_REPORT, pid=77, start_time=1234)


@pytest.mark.parametrize(("start_time", "state", "alive"), [(1234, "S", True), (1235, "S", False), (1234, "Z", False)])
def test_an_agent_lives_while_pid_and_start_time_are_its_own(
    tree: Tree, start_time: int, state: str, *, alive: bool
) -> None:
    tree.process(77, "sparkd", start_time=start_time, state=state)
    assert agent_running(Files(str(tree.root)), WRITTEN) is alive


def test_without_its_process_an_agent_does_not_live(tree: Tree) -> None:
    assert not agent_running(Files(str(tree.root)), WRITTEN)
