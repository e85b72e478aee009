"""The logs of all nodes in a capture: windows of time, and nodes that are silent."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from tests.tree import Tree

from sparkd.agent.cluster.log_pages import LogPage
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import Line, Lines, Query
from sparkd.base.lib.http_client import HttpError
from sparkd.tools.support.node_logs import NodeLog
from sparkd.tools.support.nodes_reader import NodesReader, OpenLogs

FAILURE = datetime(2026, 11, 23, 1, tzinfo=UTC)


def opening(readers: Mapping[str, Callable[[Query], Awaitable[LogPage]]]) -> OpenLogs:
    """Opens the logs of nodes by their address, which is empty for this one."""

    @asynccontextmanager
    async def open_logs(*_: object) -> AsyncIterator[tuple[list[NodeLog], str]]:
        yield [NodeLog(address, read) for address, read in readers.items()], ""

    return open_logs


def test_own_lines_are_there_where_another_node_is_silent_which_is_requested_once(tree: Tree) -> None:
    requests, missing = list[Query](), list[str]()

    async def own(query: Query) -> LogPage:
        return LogPage("spark1", time.time_ns() // 1000, Lines((Line(query.since_us, "1", 6, "an own line"),)))

    async def silent(query: Query) -> LogPage:
        requests.append(query)
        raise HttpError("no answer")

    open_both = opening({"": own, "10.0.0.2": silent})
    nodes = NodesReader(Settings(), Host(tree.root), missing, open_both)
    asyncio.run(nodes.read_all([FAILURE]))
    assert len(nodes.texts) == 2, "recent lines, and those around the failure"
    assert all("an own line" in text for text in nodes.texts.values())
    assert len(requests) == 1
    assert "lines of 10.0.0.2 (there: sudo sparkd capture), recent: no answer" in missing


def test_windows_are_by_this_nodes_clock(tree: Tree) -> None:
    """The other node's clock is two hours behind."""
    behind_us, queries = 7_200_000_000, list[Query]()

    async def read(query: Query) -> LogPage:
        queries.append(query)
        return LogPage("spark2", time.time_ns() // 1000 - behind_us, Lines(()))

    nodes = NodesReader(Settings(), Host(tree.root), [], opening({"10.0.0.2": read}))
    asyncio.run(nodes.read_all([FAILURE]))
    at_us = round(FAILURE.timestamp() * 1e6) - behind_us
    assert abs(queries[-1].since_us - (at_us - 900_000_000)) < 1_000_000
    assert abs(queries[-1].until_us - (at_us + 60_000_000)) < 1_000_000
