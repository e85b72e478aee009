"""What is published at once, what at the reporter's pace, and what is noise."""

import pytest
from tests.unit.nodes import report, status

from sparkd.base.status.figures import ActivityReport, GpuReport, HealthReport
from sparkd.base.status.model import Contact, FindingReport, MemoryReport, Phase, parse
from sparkd.base.status.publisher import FIGURES_SECONDS, NOISE_BYTES, PACE_SECONDS, Changes, Published, Reporter

PEER = status(answer=report(1, phase=Phase.LOADING))
HEALTH = HealthReport(0.1)
BUSY = ActivityReport(1, 0, 0.0, 20.5, 0.1)
TOTAL, FREE = 128 << 30, 60 << 30


@pytest.mark.parametrize(
    ("changes", "at_once", "later"),
    [
        (Changes(message="50 %"), False, True),
        (Changes(phase=Phase.LOADING), True, False),
        (Changes(epoch="e"), True, False),
        (Changes(plan_digest="d"), True, False),
        (Changes(peers=(status(answer=report(1, phase=Phase.SERVING)),)), True, False),
        (Changes(peers=(status(Contact.SILENT, answer=report(1, phase=Phase.LOADING)),)), True, False),
        (Changes(peers=(status(answer=report(1, phase=Phase.LOADING, message="50 %")),)), False, True),
    ],
)
def test_a_change_of_state_is_published_at_once_and_progress_at_a_pace(
    changes: Changes, at_once: bool, later: bool
) -> None:
    published: list[Published] = []
    now = [100.0]
    first = report(0, peers=(PEER,), memory=MemoryReport(TOTAL, FREE))
    reporter = Reporter(first, (published.append,), clock=lambda: now[0])
    reporter.publish()
    reporter.update(**changes)
    assert len(published) == 1 + at_once
    now[0] += 0.75 * PACE_SECONDS
    reporter.update()
    assert len(published) == 1 + at_once
    now[0] += PACE_SECONDS
    reporter.update()
    assert len(published) == 1 + at_once + later


@pytest.mark.parametrize(
    ("changes", "later"),
    [
        (Changes(memory=MemoryReport(TOTAL, FREE - NOISE_BYTES)), True),
        (Changes(memory=MemoryReport(TOTAL, FREE - NOISE_BYTES + 1)), False),
        (Changes(memory=None), True),
        (Changes(activity=BUSY), True),
        (Changes(health=HEALTH), True),
        (Changes(gpu=GpuReport("GB10", 2400)), True),
        (Changes(peers=(status(answer=report(1, phase=Phase.LOADING, activity=BUSY)),)), True),
    ],
)
def test_figures_alone_wait_for_a_slower_pace_and_go_with_other_news(changes: Changes, later: bool) -> None:
    published: list[Published] = []
    now = [100.0]
    reporter = Reporter(report(0, peers=(PEER,)), (published.append,), clock=lambda: now[0])
    reporter.update(memory=MemoryReport(TOTAL, FREE))  # the first is published at once
    reporter.update(**changes)
    now[0] += FIGURES_SECONDS - 0.1
    reporter.update()
    assert len(published) == 1
    now[0] += 0.1
    reporter.update()
    assert len(published) == 1 + later
    reporter.update(**changes)
    now[0] += PACE_SECONDS
    reporter.update(message="news")
    assert len(published) == 2 + later


def test_small_changes_of_memory_add_up() -> None:
    published: list[Published] = []
    now = [100.0]
    reporter = Reporter(report(0), (published.append,), clock=lambda: now[0])
    for step in range(3):
        reporter.update(memory=MemoryReport(TOTAL, FREE - step * NOISE_BYTES // 2))
        now[0] += FIGURES_SECONDS
    free = [copy.report.memory and copy.report.memory.available_bytes for copy in published]
    assert free == [FREE, FREE - NOISE_BYTES]


def test_the_memory_of_the_last_ten_minutes_is_kept_a_sample_each_ten_seconds() -> None:
    now = [100.0]
    reporter = Reporter(report(0), (), clock=lambda: now[0])
    for second in range(1000):
        now[0] += 1
        assert reporter.sample_due == (second % 10 == 0)
        reporter.update(memory=MemoryReport(100, 100 - second // 10))
    memory = reporter.report.memory
    assert memory is not None
    assert memory.used_percent == tuple(range(40, 100))


def test_the_time_in_each_phase_that_was_left_adds_up() -> None:
    now = [100.0]
    reporter = Reporter(report(0, phase=Phase.PREFLIGHT), (), clock=lambda: now[0])
    for phase, seconds in ((Phase.BLOCKED, 2), (Phase.BLOCKED, 3), (Phase.PREFLIGHT, 30), (Phase.LAUNCHING, 4)):
        now[0] += seconds
        reporter.update(phase=phase)
    assert reporter.report.phase_seconds == {"preflight": 6.0, "blocked": 33.0}


def test_a_node_that_leaves_service_has_no_activity() -> None:
    reporter = Reporter(report(0, phase=Phase.SERVING, activity=BUSY, health=HEALTH, gpu=GpuReport("GB10")), ())
    reporter.update(phase=Phase.DEGRADED)
    assert reporter.report.activity == BUSY
    reporter.update(phase=Phase.STOPPING)
    assert reporter.report.activity is None
    assert reporter.report.health is None
    assert reporter.report.gpu is None


def test_a_published_report_has_no_secret_in_any_of_its_texts_and_is_encoded_as_it_is() -> None:
    published: list[Published] = []
    leak = "key hunter2"
    findings = (FindingReport("a", "ok", leak, leak),)
    secret = report(0, message=leak, hint=leak, last_cause=leak, last_hint=leak, findings=findings)
    reporter = Reporter(secret, (published.append,), lambda text: text.replace("hunter2", "***"))
    reporter.publish()
    for copy in (reporter.published, *published):
        assert "hunter2" not in copy.text
        assert parse(copy.text) == copy.report
        assert copy.report.findings == (FindingReport("a", "ok", "key ***", "key ***"),)
