"""The journals of all nodes: each agent answers signed requests for lines of its own units, and for nothing else.

The lines are those of journalctl, not of this process: the cause of a failure was written by the process before. They
are bounded on both sides, and one request at a time is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from sparkd.agent.cluster.client import SignedClient, Source, UnsignedError
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.membership import find_place, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import ENGINE, LATEST_US, MOST_LINES, Line, Lines, Query, read_journal
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.text import printable, sanitize
from sparkd.base.state.file import StateFile
from sparkd.base.vllm.known_errors import KnownError, explain

PATH = "/log"
ANSWER_SECONDS = 8.0
"""Limit for an answer: longer than reading a journal takes, and shorter than a handler may."""
TRIES = 3
"""Requests to one node for a page."""
TRY_AGAIN_SECONDS = 0.3
"""Pause between two of these: another reader's request may be under way."""
CLOCK_US = 1_000_000
"""A smaller difference between clocks is ignored: it may be the answer's travel time."""
NAME_LIMIT = 64
FAILURES = ("agent.run.failed ", "agent.run.refused ", "agent.run.blocked ")
"""Beginnings of the events that name a cause."""
READY = "engine.readiness.reached"
_AS_JSON = '{"event": "'
"""Beginning of an event with `log.format = "json"`."""


class BusyError(HttpError):
    """The node answers another reader's request."""


class Page(Struct, frozen=True):
    """One answer of a node."""

    node: Annotated[str, Meta(max_length=1000)]
    now_us: Annotated[int, Meta(ge=0, le=LATEST_US)]
    """The time of its clock."""
    lines: Lines
    trouble: Annotated[str, Meta(max_length=2000)] = ""
    """Why its journal can't be read."""


_DOCUMENT = StateFile("log", Page)
"""Encodes the answer. No file is written."""


def make_path(query: Query) -> str:
    return f"{PATH}?since={query.since_us}&until={query.until_us}&priority={query.priority}&engine={query.engine:d}"


def parse_query(text: str) -> Query | None:
    """The query of a request's path; None where it is invalid."""
    with suppress(KeyError, IndexError, ValueError):  # ValueError: of msgspec too
        fields = parse_qs(text, strict_parsing=True, max_num_fields=8)
        words = [fields[name][0] for name in ("since", "until", "priority", "engine")]
        if all(word.isascii() and word.isdigit() and len(word) <= 16 for word in words):
            return msgspec.convert((*map(int, words[:3]), words[3] != "0"), prepared(Query))
    return None


def answer(node: str, text: str) -> bytes:
    """The answer to a request's query; empty where the query is invalid."""
    query = parse_query(text)
    return b"" if query is None else dump(read_page(node, query))


def read_page(node: str, query: Query) -> Page:
    """The page of this node. Takes as long as the journal is read."""
    try:
        lines, trouble = read_journal(query), ""
    except OSError as error:
        lines, trouble = Lines(()), sanitize(str(error), 1000)
    return Page(node, time.time_ns() // 1000, lines, trouble)


def dump(page: Page) -> bytes:
    return _DOCUMENT.encode(page).encode()


def parse(body: bytes) -> Page:
    """The page of another node, printable. Raises ValueError."""
    page = _DOCUMENT.decode(body)
    lines = (
        Line(line.at_us, sanitize(line.place, 64), line.priority, printable(line.text)) for line in page.lines.lines
    )
    name, is_cut = sanitize(page.node, NAME_LIMIT), page.lines.cut
    return Page(name, page.now_us, Lines(tuple(lines), is_cut), sanitize(page.trouble))


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


class NodeLog(Struct):
    """Reads the lines of one node, each of them once."""

    name: str
    """Its address, which is shown behind the name that it gives itself; empty for this node."""
    read: Callable[[Query], Awaitable[Page]]
    """Raises OSError, HttpError, UnsignedError, ValueError."""
    _at_us: int = 0
    """Time of the last line."""
    _last_keys: set[tuple[int, str]] = field(default_factory=set)
    """Time and place of the lines of the last page."""

    async def next(self, query: Query) -> tuple[list[Entry], str]:
        """The new lines, oldest first; and why they may not be all, such as no answer (empty where they are)."""
        new_query = replace(query, since_us=max(query.since_us, self._at_us))
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(TRY_AGAIN_SECONDS)
            try:
                page = await self.read(new_query)
                break
            except BusyError as error:
                reason = sanitize(str(error))
            except (OSError, HttpError, UnsignedError, ValueError) as error:
                return [], sanitize(str(error))
        else:
            return [], reason
        peer_ahead_us = page.now_us - time.time_ns() // 1000
        shift_us = peer_ahead_us if abs(peer_ahead_us) > CLOCK_US else 0
        # Lines of the last page are left out by time and place, not by time alone: a clock may be set back.
        lines = [line for line in page.lines.lines if line.at_us >= new_query.since_us]
        name = f"{page.node} ({self.name})" if self.name else page.node
        new_entries = [
            Entry(line.at_us - shift_us, name, line)
            for line in lines
            if (line.at_us, line.place) not in self._last_keys
        ]
        if lines:
            self._at_us, self._last_keys = lines[-1].at_us, {(line.at_us, line.place) for line in lines}
        trouble = page.trouble or (f"over {MOST_LINES} lines, or too long: the oldest are left out" * page.lines.cut)
        return new_entries, trouble


def open_logs(settings: Settings, host: Host) -> tuple[list[NodeLog], str]:
    """The logs of all nodes, this one's first; and why those of the others are missing (empty where they are not)."""

    async def read_own(query: Query) -> Page:
        return await run_in_thread("log", partial(read_page, host.name(), query))

    logs = [NodeLog("", read_own)]
    try:
        place = find_place(settings, host)
        if peers := peers_of(settings, place.rank):
            keys = KeyRing(host.files, settings.cluster.key_file).keys
            own_address, port = settings.cluster.nodes[place.rank], settings.cluster.report_port
            sources = (Source(*peer, port, own_address, 0, ANSWER_SECONDS + 2) for peer in peers)
            logs += (NodeLog(source.address, partial(_request_page, SignedClient(source, keys))) for source in sources)
    except ConfigError as error:  # this node's own lines explain it further
        return logs, str(error)
    return logs, ""


async def _request_page(client: SignedClient, query: Query) -> Page:
    answer = await client.request(make_path(query))
    if answer.status != 200:
        raise BusyError("it does not answer now, or its sparkd is of another version")
    return parse(answer.body)


class Marks:
    """Marks lines that are failures: the known error of each, and the first failure since an engine served."""

    def __init__(self) -> None:
        self._failed = False

    def judge(self, line: Line) -> tuple[KnownError | None, bool]:
        """The known error of the next line, if any, and whether this is that first failure."""
        is_engine, text = line.text.startswith(ENGINE), line.text.removeprefix(ENGINE)
        if not is_engine and text.startswith(_AS_JSON):
            text = text.removeprefix(_AS_JSON).replace('"', " ", 1)
        if not is_engine and text.startswith(READY):
            self._failed = False
        known_error = explain(text)
        is_first = not self._failed and (known_error is not None or (not is_engine and text.startswith(FAILURES)))
        self._failed = self._failed or is_first
        return known_error, is_first
