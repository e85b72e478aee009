"""What the page shows besides the report: an hour of each node's figures, in memory, and this node's last day, on disk.

Both belong to the event loop's thread. The disk is read in a thread of its own, and only while somebody reads the page.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import fmean
from typing import NamedTuple

from sparkd.base.host.journal import Line
from sparkd.base.lib.slow_document import SlowDocument
from sparkd.base.state.history import Row
from sparkd.base.status.figure_texts import MOST, memory_share
from sparkd.base.status.model import NodeReport
from sparkd.base.status.publisher import Published

SAMPLE_SECONDS, SAMPLES = 10.0, 6
"""Pause between two samples, and samples of a point, which is the mean of a minute."""
POINTS = 60
"""Points kept of each node: some 20 KiB."""
FRESH_SECONDS = 30.0
"""Least time between two readings of the disk: journalctl takes CPU."""
WAIT_SECONDS = 1.0
"""How long a page waits for the disk, before it shows what was read last."""


class Point(NamedTuple):
    """Figures of one minute; None where the node had none."""

    tokens_per_second: float | None = None
    requests: float | None = None
    """Requests that run or wait."""
    first_token_seconds: float | None = None
    used_share: float | None = None
    """Share of the memory that is in use."""


class Disk(NamedTuple):
    """What was read from this node's disk. Texts are without secrets, and of any length."""

    rows: tuple[Row, ...] = ()
    """The newest rows of each kind of the history, oldest first."""
    warnings: tuple[Line, ...] = ()
    """The agent's warnings in the journal, newest first."""


class PageHistory:
    """What the page shows besides the report: points of the last hour, and what was last read from the disk."""

    def __init__(self, read: Callable[[], Disk] = Disk) -> None:
        """`read` reads the disk, in a thread. It may take long or hang, and raises nothing."""
        self._slow = SlowDocument("page-disk", lambda _query: read(), FRESH_SECONDS)
        self._minutes: dict[int, list[Point]] = {}
        """Samples of the present minute by rank."""
        self._samples = 0
        """Number of samples ever taken."""
        self.curves: dict[int, deque[Point]] = {}
        """Points of each rank, oldest first."""
        self.disk = Disk()

    async def refresh(self) -> None:
        """Read the disk again where that is due, for WAIT_SECONDS at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                disk = await self._slow.get("")
            self.disk = self.disk if disk is None else disk

    async def follow(self, published: Callable[[], Published]) -> None:
        """Take samples for ever."""
        while True:
            self.sample(published().report)
            await asyncio.sleep(SAMPLE_SECONDS)

    def sample(self, report: NodeReport) -> None:
        """Take a sample of all nodes that answer. Called every SAMPLE_SECONDS."""
        reports = {peer.rank: peer.living for peer in report.peers} | {report.rank: report}
        for rank, node in reports.items():
            if node is not None:
                self._minutes.setdefault(rank, []).append(_make_point(node))
        self._samples += 1
        if self._samples % SAMPLES == 0:
            for rank in self._minutes.keys() | self.curves.keys():
                points = self.curves.setdefault(rank, deque(maxlen=POINTS))
                points.append(Point(*map(_average_known, zip(*self._minutes.pop(rank, [Point()]), strict=True))))


def _make_point(report: NodeReport) -> Point:
    used_share = memory_share(report.memory) if report.memory else None
    if (activity := report.activity) is None:
        return Point(used_share=used_share)
    return Point(
        activity.output_tokens_per_second, activity.running + activity.waiting, activity.first_token_seconds, used_share
    )


def _average_known(values: Sequence[float | None]) -> float | None:
    """The mean of the known values, each limited to what a figure can be; None where none is known."""
    known_values = [min(max(0.0, value), MOST) for value in values if value is not None]
    return fmean(known_values) if known_values else None
