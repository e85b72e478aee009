"""The history that the page shows: an hour of figures in memory, and the spans of the last day."""

import asyncio
import threading
import time
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from tests.unit import page_reports

from sparkd.agent.status.page_history import POINTS, SAMPLES, Disk, PageHistory, Point, find_spans
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch
from sparkd.base.state.launch_history import End
from sparkd.base.status.model import Contact

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOUR = 3600.0
FACTS = Facts({"image.identity": "i" * 1000}, {}, {})


def launch(began: float, load: float | None, ended: float | None) -> Launch:
    """By seconds before NOW."""
    at, end = ((NOW - timedelta(seconds=ago)).isoformat() if ago is not None else "" for ago in (began, ended))
    return Launch(f"l{began}", at, 0, "p", "r", FACTS, load_seconds=load, end=End("e", at=end) if end else None)


def test_a_point_is_the_mean_of_a_minute_and_points_of_an_hour_are_kept() -> None:
    kept, report = PageHistory(), page_reports.serving()
    assert report.activity is not None
    for number in range(SAMPLES):
        assert not kept.curves
        activity = replace(report.activity, output_tokens_per_second=10.0 * number, first_token_seconds=None)
        kept.sample(replace(report, activity=activity))
    head, worker = kept.curves[0][0], kept.curves[1][0]
    assert (head.tokens_per_second, head.requests, head.first_token_seconds) == (25.0, 7.0, None)
    assert (worker.tokens_per_second, round(worker.used_share or 0, 2)) == (None, 0.8)
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


@pytest.mark.parametrize(
    ("launches", "spans"),
    [
        ([], []),
        ([launch(2 * HOUR, 600, None)], [("loading", 7200, 6600), ("serving", 6600, 0)]),
        ([launch(600, None, None)], [("loading", 600, 0)]),
        ([launch(600, None, 500)], [("loading", 600, 500)]),
        ([launch(30 * HOUR, 600, HOUR)], [("serving", 24 * HOUR, HOUR)]),
        ([launch(50 * HOUR, 600, 40 * HOUR)], []),
        ([launch(5 * HOUR, HOUR, None), launch(HOUR, None, None)],
         [("loading", 5 * HOUR, 4 * HOUR), ("serving", 4 * HOUR, HOUR), ("loading", HOUR, 0)]),
        ([launch(-HOUR, 600, None)], []),
        ([replace(launch(HOUR, 600, None), at="x")], []),
        ([launch(HOUR, 1e300, None)], [("loading", HOUR, 0), ("serving", 0, 0)][:1]),
    ],
)  # fmt: skip
def test_the_last_day_is_read_from_the_launches(launches: list[Launch], spans: list[tuple[str, float, float]]) -> None:
    assert [(state, round(since), round(until)) for state, since, until in find_spans(launches, NOW)] == spans


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
