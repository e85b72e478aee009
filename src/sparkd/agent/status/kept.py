"""What the page shows beside the report: an hour of each node's figures, in memory, and this node's last day, on disk.

Both belong to the loop's thread. The disk is read in a thread of its own, while somebody reads the page.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from statistics import fmean
from typing import NamedTuple

from sparkd.base.host.journal import Line
from sparkd.base.lib.slow_document import SlowDocument
from sparkd.base.state.history import Launch, Row
from sparkd.base.status.figure_texts import MOST, memory_share
from sparkd.base.status.model import DAY_SECONDS, NodeReport, seconds_since
from sparkd.base.status.publisher import Published

SAMPLE_SECONDS, SAMPLES = 10.0, 6
"""Samples of a point: a point is the mean of a minute."""
POINTS = 60
"""Points kept of each node: some 20 KiB."""
FRESH_SECONDS = 30.0
"""Pause between two looks at the disk: journalctl takes CPU."""
WAIT_SECONDS = 1.0
"""A page waits so long for the disk, and then shows what was read last."""


class Point(NamedTuple):
    """Figures of one minute; None where the node had none."""

    tokens_per_second: float | None = None
    requests: float | None = None
    """Those that run or wait."""
    first_token_seconds: float | None = None
    used_share: float | None = None
    """Of the memory."""


class Disk(NamedTuple):
    """What this node's disk has. Texts are without secrets, and are not bounded."""

    rows: tuple[Row, ...] = ()
    """The newest of each kind, oldest first."""
    warnings: tuple[Line, ...] = ()
    """The agent's own, newest first."""


class Kept:
    def __init__(self, read: Callable[[], Disk] = Disk) -> None:
        """`read` takes time, or hangs, and raises nothing."""
        self._slow = SlowDocument("page-disk", lambda _query: read(), FRESH_SECONDS)
        self._minutes: dict[int, list[Point]] = {}
        self._samples = 0
        self.curves: dict[int, deque[Point]] = {}
        """Points of each rank, oldest first."""
        self.disk = Disk()

    async def refresh(self) -> None:
        """Read the disk again where that is due."""
        with suppress(TimeoutError):
            disk = await asyncio.wait_for(self._slow.get(""), WAIT_SECONDS)
            self.disk = self.disk if disk is None else disk

    async def follow(self, published: Callable[[], Published]) -> None:
        while True:
            self.sample(published().report)
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self, report: NodeReport) -> None:
        """Take figures of all nodes that answer. Called each SAMPLE_SECONDS."""
        living = {peer.rank: peer.living for peer in report.peers} | {report.rank: report}
        for rank, node in living.items():
            if node is not None:
                self._minutes.setdefault(rank, []).append(_point(node))
        self._samples += 1
        if self._samples % SAMPLES == 0:
            for rank in self._minutes.keys() | self.curves.keys():
                points = self.curves.setdefault(rank, deque(maxlen=POINTS))
                points.append(Point(*map(_mean, zip(*self._minutes.pop(rank, [Point()]), strict=True))))


def _point(report: NodeReport) -> Point:
    used = memory_share(report.memory) if report.memory else None
    if (now := report.activity) is None:
        return Point(used_share=used)
    return Point(now.output_tokens_per_second, now.running + now.waiting, now.first_token_seconds, used)


def _mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known, within what a figure can be."""
    known = [min(max(0.0, value), MOST) for value in values if value is not None]
    return fmean(known) if known else None


def find_spans(rows: Sequence[Row], now: datetime) -> Iterator[tuple[str, float, float]]:
    """`loading` or `serving`, from when to when, in seconds before now, of the last day's launches of this node.

    A launch without an end lasts to the next one, or to now.
    """
    launches = [row for row in rows if isinstance(row, Launch)]
    for launch, next_at in zip(launches, [*(later.at for later in launches[1:]), now.isoformat()], strict=False):
        begin, end = (seconds_since(at, now) for at in (launch.at, launch.end.at if launch.end else next_at))
        if begin is None or end is None:
            continue
        loaded = end if launch.load_seconds is None else begin - launch.load_seconds
        for state, since, until in (("loading", begin, loaded), ("serving", loaded, end)):
            if min(since, DAY_SECONDS) > max(until, 0.0):
                yield state, min(since, DAY_SECONDS), max(until, 0.0)
