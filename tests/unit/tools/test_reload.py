"""`sparkd reload` where no agent serves: what to do instead names this node's own unit."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.node_reports import HEAD_REPORT

from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError
from sparkd.base.status.model import dump
from sparkd.tools.node.reload import reload


@pytest.mark.parametrize(
    ("role", "unit"),
    [("head", "sparkd-head"), ("worker", "sparkd-worker"), ("", "sparkd-head; on a worker: sparkd-worker")],
)
def test_without_an_agent_that_serves_the_way_to_restart_is_named(tree: Tree, role: str, unit: str) -> None:
    if role:
        tree.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, role=role)))
    with pytest.raises(BlockedError, match="no agent that serves runs here; nothing has changed") as refused:
        reload(Host(tree.root), pytest.fail)
    assert refused.value.hint == f"to restart anyway, which ends a load: sudo systemctl restart {unit}"
