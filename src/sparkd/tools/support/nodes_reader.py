"""What `sparkd capture` reads of the nodes by their agents: the logs of all, reports and inventories of the others."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

from sparkd.agent.cluster import inventory
from sparkd.agent.cluster.client import Source, UnsignedError
from sparkd.agent.cluster.peer_reader import PeerReader, parse_peer_report
from sparkd.base.cluster import membership
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.journal import LATEST_US, Query
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.slow_document import ANSWER_SECONDS
from sparkd.base.lib.text import sanitize
from sparkd.base.state import launch_history
from sparkd.base.status import model
from sparkd.tools.support.node_logs import Entry, NodeLog, merge, open_logs

OpenLogs: TypeAlias = Callable[[Settings, Host], AbstractAsyncContextManager[tuple[list[NodeLog], str]]]

RECENT = timedelta(days=1)
BEFORE_FAILURE, AFTER_FAILURE = timedelta(minutes=15), timedelta(minutes=1)
"""The window of log lines around a failure."""


def find_failures(files: Files) -> list[datetime]:
    """Times of the last two failures of this node, the newest first."""
    history = launch_history.read_history(files)
    ends = (*history.ends, *([history.last_cause] if history.last_cause else []))
    stamps = sorted({end.at for end in ends if end.at}, reverse=True)[:2]
    failures = []
    for stamp in stamps:
        with suppress(ValueError):
            failures.append(datetime.fromisoformat(stamp))
    return failures


class Window(NamedTuple):
    """A span of time of which the logs are read."""

    since: datetime
    until: datetime | None
    """None: up to now."""

    @property
    def name(self) -> str:
        return "recent" if self.until is None else f"until-{self.until:%Y%m%dT%H%M%SZ}"

    @property
    def query(self) -> Query:
        until_us = LATEST_US if self.until is None else _to_microseconds(self.until)
        return Query(_to_microseconds(self.since), until_us)


class NodesReader:
    """Reads texts of the nodes. What it has read so far is in `texts`, so that an interrupt loses none."""

    def __init__(self, settings: Settings, host: Host, missing: list[str], open_logs: OpenLogs = open_logs) -> None:
        """`missing` gets a line on each text that can't be read."""
        self.texts: dict[str, str] = {}
        """By their path in the archive."""
        self._settings, self._host, self._missing, self._open_logs = settings, host, missing, open_logs

    async def read_all(self, failures: Iterable[datetime]) -> None:
        """Read the logs of all nodes, recent ones and around the failures, and what the agents of the others report."""
        now = datetime.now(UTC)
        windows = (Window(now - RECENT, None), *(Window(at - BEFORE_FAILURE, at + AFTER_FAILURE) for at in failures))
        silent: set[str] = set()
        for window in windows:
            silent |= await self._read_logs(window, silent)
        await self._read_reports(silent)

    async def _read_logs(self, window: Window, silent: set[str]) -> set[str]:
        """Read the logs of a window, but not of `silent` nodes. Returns addresses of nodes that do not answer."""
        async with self._open_logs(self._settings, self._host) as (opened_logs, peer_trouble):
            logs = [log for log in opened_logs if log.address not in silent]
            answers = await asyncio.gather(*(log.read_new(window.query) for log in logs))
        if peer_trouble and window.until is None:  # it is the same in each window
            self._missing.append(f"lines of other nodes: {sanitize(peer_trouble, 400)}")
        entries = merge(answer.entries for answer in answers)
        self.texts[f"logs/{window.name}.log"] = "".join(map(_format_line, entries))
        for log, answer in zip(logs, answers, strict=True):
            if answer.trouble:
                place = _place(log.address) if log.address else "this node"
                self._missing.append(f"lines of {place}, {window.name}: {answer.trouble}")
        return {log.address for log, answer in zip(logs, answers, strict=True) if log.address and answer.is_unread}

    async def _read_reports(self, silent: set[str]) -> None:
        """Read report and inventory of each other node that is not silent."""
        rank = membership.find_place(self._settings, self._host).rank
        if not (peers := membership.peers_of(self._settings, rank)):
            return
        keys = KeyRing(self._host.files, self._settings.cluster.key_file).keys
        own_address, port = self._settings.cluster.nodes[rank], self._settings.cluster.report_port
        for peer in peers:
            if peer.address in silent:
                continue
            reader = PeerReader(Source(*peer, port, own_address, 0, ANSWER_SECONDS), keys, lambda: None)
            try:
                report = parse_peer_report((await reader.fetch("/report")).body, peer.rank)
                self.texts[f"nodes/{peer.address}/report.json"] = model.dump(report) if report else ""
                peer_inventory = inventory.CODEC.decode((await reader.fetch(inventory.PATH)).body)
                self.texts[f"nodes/{peer.address}/inventory.json"] = inventory.CODEC.encode(peer_inventory)
            except (HttpError, UnsignedError, ValueError) as error:
                self._missing.append(f"report of {_place(peer.address)}: {sanitize(str(error))}")


def _place(address: str) -> str:
    """Another node, and how to read it there."""
    return f"{address} (there: sudo sparkd capture)"


def _format_line(entry: Entry) -> str:
    at = datetime.fromtimestamp(entry.at_us / 1e6, UTC).isoformat(timespec="milliseconds")
    return f"{at} {entry.node} <{entry.line.priority}> {entry.line.text}\n"


def _to_microseconds(at: datetime) -> int:
    return max(0, round(at.timestamp() * 1_000_000))
