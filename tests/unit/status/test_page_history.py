"""An hour of figures in memory, and the last day by what is on disk."""

import asyncio
import json
import threading
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit import page_reports

from sparkd.agent.actions import history
from sparkd.agent.daemon.history import MOST_WARNINGS, read_disk
from sparkd.agent.status.page_history import POINTS, SAMPLES, Disk, PageHistory, Point, find_spans
from sparkd.base.host.files import Files
from sparkd.base.host.journal import read_warnings
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Smoke
from sparkd.base.state.launch_history import End
from sparkd.base.status.model import Contact

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOUR = 3600.0
FACTS = Facts({"image.identity": "i" * 1000}, {}, {})


def launch(began: float, load: float | None, ended: float | None) -> Launch:
    """By seconds before NOW."""
    at, end = ((NOW - timedelta(seconds=ago)).isoformat() if ago is not None else "" for ago in (began, ended))
    return Launch(f"l{began}", at, 0, "p", "r", FACTS, load_seconds=load, end=End("e", at=end) if end else None)


def test_a_point_is_the_mean_of_a_minute_and_an_hour_is_kept() -> None:
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
    for shown in (report, lost, report):
        for _ in range(SAMPLES):
            kept.sample(shown)
    assert [len(points) for points in kept.curves.values()] == [3, 3]
    assert kept.curves[1][1] == Point()


def test_figures_of_no_engine_are_kept_within_bounds() -> None:
    kept = PageHistory()
    for _ in range(SAMPLES):
        kept.sample(page_reports.hostile())
    for figure in kept.curves[0][0]:
        assert figure is None or 0 <= figure <= 1e9


def test_eight_nodes_take_little_memory() -> None:
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

    async def twice() -> float:
        kept, began = PageHistory(read), time.monotonic()
        await asyncio.gather(kept.refresh(), kept.refresh())
        return time.monotonic() - began

    try:
        assert asyncio.run(twice()) < 2
    finally:
        end.set()


def test_rows_of_the_disk_come_without_their_facts(tree: Tree) -> None:
    tree.folder("/var/lib/sparkd")
    files = Files(str(tree.root))
    assert read_disk(files) == Disk()
    smoke, bench = Smoke("s", "2026-11-23T10:05:00+00:00", "a", "r", 0), Bench("b", "", "a", "r", Raw(b"{}"))
    history.write(files, launch(HOUR, 5, None), smoke, bench)
    rows = read_disk(files).rows
    assert [type(row) for row in rows] == [Launch, Smoke, Bench]
    assert isinstance(rows[0], Launch)
    assert rows[0].facts == Facts({}, {}, {})
    (tree.root / "var/lib/sparkd/history.db").write_bytes(b"rubbish" * 1000)
    assert read_disk(files).rows == ()


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_log_is_the_agents_own_and_no_line_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    texts = ["engine| prompt of a client", "agent.run.failed reason=x api_key=abcdefgh12345678", *["w"] * 20]
    cursor = "s=1;i=2;b=3"
    stamp = {"__REALTIME_TIMESTAMP": "1764000000123456", "PRIORITY": "4", "__CURSOR": cursor}
    lines = "".join(json.dumps({**stamp, "MESSAGE": text}) + "\n" for text in texts)
    (tmp_path / "lines").write_text(lines)
    write_program(tmp_path / "journalctl", f'#!/bin/sh\necho "$@" >{tmp_path}/words\ncat {tmp_path}/lines\n')
    warnings = read_warnings(Files(), MOST_WARNINGS)
    assert [line.text for line in warnings] == ["agent.run.failed reason=x api_key=***", *["w"] * 7]
    assert "--priority=4" in (tmp_path / "words").read_text()
    loud = json.dumps({"MESSAGE": "engine| " + "\u202e" * 16_000, **stamp}, ensure_ascii=False, separators=(",", ":"))
    (tmp_path / "lines").write_text(f"{loud}\n" * 300 + lines)
    began = time.process_time()
    assert read_warnings(Files(), MOST_WARNINGS) == warnings
    assert time.process_time() - began < 0.3, "of which a client may make many"
    write_program(tmp_path / "journalctl", "#!/bin/sh\nexit 1\n")
    with pytest.raises(OSError, match="exit code 1"):
        read_warnings(Files(), MOST_WARNINGS)
    assert read_disk(Files()).warnings == ()
