"""What the page shows besides the report: an hour of figures in memory, and what was read from the disk."""

import asyncio
import threading
import time
import tracemalloc

import pytest
from msgspec.structs import replace
from tests.unit import page_reports

from sparkd.agent.status.page_history import POINTS, SAMPLES, Disk, PageHistory, Point
from sparkd.base.status.model import Contact


def test_a_point_is_the_mean_of_a_minute_and_points_of_an_hour_are_kept() -> None:
    kept, report = PageHistory(), page_reports.serving()
    assert report.activity is not None
    for number in range(SAMPLES):
        assert not kept.curves
        activity = replace(report.activity, output_tokens_per_second=10.0 * number, first_token_seconds=None)
        kept.sample(replace(report, activity=activity))
    head, worker = kept.curves[0][0], kept.curves[1][0]
    assert head.tokens_per_second == 25.0
    assert head.requests == 7.0
    assert head.first_token_seconds is None
    assert worker.tokens_per_second is None
    assert worker.used_share == pytest.approx(0.8, abs=0.005)
    for _ in range(SAMPLES * (POINTS + 5)):
        kept.sample(report)
    assert {len(points) for points in kept.curves.values()} == {POINTS}


def test_a_node_that_does_not_answer_has_a_gap_and_stays_beside_the_others() -> None:
    kept, report = PageHistory(), page_reports.serving()
    lost = replace(report, peers=(replace(report.peers[0], contact=Contact.SILENT),))
    for minute in (report, lost, report):
        for _ in range(SAMPLES):
            kept.sample(minute)
    assert [len(points) for points in kept.curves.values()] == [3, 3]
    assert kept.curves[1][1] == Point()


def test_hostile_figures_are_kept_within_bounds() -> None:
    kept = PageHistory()
    for _ in range(SAMPLES):
        kept.sample(page_reports.hostile())
    for figure in kept.curves[0][0]:
        assert figure is None or 0 <= figure <= 1e9


def test_an_hour_of_eight_nodes_takes_22_kb_each() -> None:
    head = page_reports.serving()
    peers = tuple(replace(head.peers[0], rank=rank, report=replace(head, peers=())) for rank in range(1, 8))
    report = replace(head, peers=peers)
    kept = PageHistory()
    tracemalloc.start()
    try:
        for _ in range(SAMPLES * POINTS * 2):
            kept.sample(report)
        assert tracemalloc.get_traced_memory()[0] < 8 * 22_000
    finally:
        tracemalloc.stop()


def test_a_disk_that_hangs_holds_no_page_up_for_long() -> None:
    end = threading.Event()

    def read() -> Disk:
        end.wait(20)
        return Disk()

    async def refresh_twice() -> float:
        kept, began = PageHistory(read), time.monotonic()
        await asyncio.gather(kept.refresh(), kept.refresh())
        return time.monotonic() - began

    try:
        assert asyncio.run(refresh_twice()) < 2
    finally:
        end.set()
