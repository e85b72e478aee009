"""The journals of all nodes, read as one: each line once, with its time by this node's clock."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from sparkd.agent.cluster.client import SLOW_ANSWER_SECONDS, SignedClient, Source, UnsignedError
from sparkd.agent.cluster.log_pages import LogPage, make_path, parse, read_page
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.membership import find_place, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import ENGINE, LATEST_US, MOST_LINES, Line, Query
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.slow_document import BUSY_STATUS
from sparkd.base.lib.text import sanitize

TRIES = 3
"""Requests to one node for a page."""
TRY_AGAIN_SECONDS = 0.3
"""Pause between two of these: another reader's request may be under way."""
CLOCK_US = 1_000_000
"""A smaller difference between clocks is ignored: it may be the answer's travel time."""


class BusyError(HttpError):
    """The node may answer another reader's request: the same one may succeed a moment later."""


class Entry(NamedTuple):
    at_us: int
    """Time since 1970, by this node's clock."""
    node: str
    line: Line

    @property
    def engine(self) -> bool:
        return self.line.text.startswith(ENGINE)


def merge(nodes: Iterable[list[Entry]]) -> list[Entry]:
    """All lines, by time. Lines of a node with the same time keep their order."""
    return sorted((entry for entries in nodes for entry in entries), key=lambda entry: entry.at_us)


class NewLines(NamedTuple):
    entries: list[Entry]
    """The oldest first."""
    trouble: str
    """Why these may not be all, such as no answer of the node; empty where they are."""

    @property
    def is_unread(self) -> bool:
        """Whether the log could not be read at all."""
        return bool(self.trouble) and not self.entries


class NodeLog:
    """Reads the lines of one node, each of them once, also where its clock differs from this node's, or is set."""

    def __init__(self, address: str, read: Callable[[Query], Awaitable[LogPage]]) -> None:
        """`address`: shown behind the name that the node gives itself; empty for this node.

        `read` takes a query by that node's clock. It raises OSError, HttpError, UnsignedError, ValueError.
        """
        self.address = address
        self._read = read
        self._own_origin_us = _clock_origin(time.time_ns() // 1000)
        """Origin of the clock by which queries come: this node's, when this reader was made."""
        self._origin_us = self._own_origin_us
        """Origin of the clock of the node that is read; its first page shows it."""
        self._last_us: int | None = None
        """The time of the last line, by the clock of the node that is read."""
        self._shown = dict[tuple[int, str], None]()
        """Time and place of the last lines, as many as a page may have, in their order."""

    async def read_new(self, query: Query) -> NewLines:
        """Read the lines that this reader has not returned yet.

        `query`: by this node's clock, as it was when this reader was made.
        """
        for _ in range(2):
            try:
                page = await self._request(self._translate(query))
            except (OSError, HttpError, UnsignedError, ValueError) as error:
                return NewLines([], sanitize(str(error)))
            if not self._note_clock(page.now_us):
                break  # else the query's bounds were by a wrong clock
        trouble = page.trouble or self._describe_cut(page)
        return NewLines(self._take_new(page), trouble)

    async def _request(self, query: Query) -> LogPage:
        for _ in range(TRIES - 1):
            try:
                return await self._read(query)
            except BusyError:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
        return await self._read(query)

    def _translate(self, query: Query) -> Query:
        """The query by the clock of the node that is read, from the last line on."""
        ahead_us = self._origin_us - self._own_origin_us
        since_us = query.since_us + ahead_us if self._last_us is None else self._last_us
        until_us = query.until_us if query.until_us == LATEST_US else query.until_us + ahead_us
        return replace(query, since_us=_clamp(since_us), until_us=_clamp(until_us))

    def _note_clock(self, now_us: int) -> bool:
        """Note the clock of the node that was read. Returns whether it differs from the one of the query's bounds."""
        origin_us = _clock_origin(now_us)
        moved_us = origin_us - self._origin_us
        if abs(moved_us) <= CLOCK_US:
            return False
        self._origin_us = origin_us
        if self._last_us is not None and moved_us < 0:  # set back: new lines have earlier times than the last one
            self._last_us += moved_us
        return True

    def _describe_cut(self, page: LogPage) -> str:
        lines = page.lines.lines
        if not page.lines.cut or (lines and (lines[0].at_us, lines[0].place) in self._shown):
            return ""
        return f"over {MOST_LINES} lines, or too long: the oldest are left out"

    def _take_new(self, page: LogPage) -> list[Entry]:
        ahead_us = page.now_us - time.time_ns() // 1000
        shift_us = ahead_us if abs(ahead_us) > CLOCK_US else 0
        name = f"{page.node} ({self.address})" if self.address else page.node
        # By time and place: of lines with the last one's time some may be new, and a clock may have been set back.
        new_lines = [line for line in page.lines.lines if (line.at_us, line.place) not in self._shown]
        if page.lines.lines:
            self._last_us = page.lines.lines[-1].at_us
        keys = dict.fromkeys([*self._shown, *((line.at_us, line.place) for line in new_lines)])
        self._shown = dict.fromkeys([*keys][-MOST_LINES:])
        return [Entry(line.at_us - shift_us, name, line) for line in new_lines]


@asynccontextmanager
async def open_logs(settings: Settings, host: Host) -> AsyncIterator[tuple[list[NodeLog], str]]:
    """The logs of all nodes, this one's first; and why those of the others are missing (empty where they are not)."""

    async def read_own(query: Query) -> LogPage:
        return await run_in_thread("log", partial(read_page, host.name(), query))

    logs, trouble = [NodeLog("", read_own)], ""
    async with AsyncExitStack() as stack:
        try:
            place = find_place(settings, host)
            if peers := peers_of(settings, place.rank):
                keys = KeyRing(host.files, settings.cluster.key_file).keys
                own_address, port = settings.cluster.nodes[place.rank], settings.cluster.report_port
                for peer in peers:
                    client = SignedClient(Source(*peer, port, own_address, 0, SLOW_ANSWER_SECONDS), keys)
                    stack.push_async_callback(client.close)
                    logs.append(NodeLog(peer.address, partial(_request_page, client)))
        except ConfigError as error:  # this node's own lines explain it further
            trouble = str(error)
        yield logs, trouble


async def _request_page(client: SignedClient, query: Query) -> LogPage:
    answer = await client.request(make_path(query))
    if answer.status == BUSY_STATUS:
        raise BusyError("it answers another reader's request")
    if answer.status == 404:  # an earlier version answers so while it is busy, too
        raise BusyError("HTTP 404: it is busy, or its sparkd is of another version")
    if answer.status != 200:
        raise HttpError(f"HTTP {answer.status}: its sparkd may be of another version")
    return parse(answer.body)


def _clock_origin(now_us: int) -> int:
    """What a clock shows at the monotonic clock's zero: another value once somebody sets that clock."""
    return now_us - time.monotonic_ns() // 1000


def _clamp(at_us: int) -> int:
    return max(0, min(at_us, LATEST_US))
