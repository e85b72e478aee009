"""What is published at once, what at the reporter's pace, and what is noise."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.nodes import report, status

from sparkd.status.model import Contact, MemoryReport, NodeReport, Phase
from sparkd.status.publisher import NOISE_BYTES, PACE_SECONDS, Changes, Reporter

PEER = status(said=report(1, phase=Phase.LOADING))
TOTAL, FREE = 128 << 30, 60 << 30


@pytest.mark.parametrize(
    ("changes", "at_once", "later"),
    [
        (Changes(message="50 %"), False, True),
        (Changes(phase=Phase.LOADING), True, False),
        (Changes(epoch="e"), True, False),
        (Changes(plan_digest="d"), True, False),
        (Changes(peers=(status(said=report(1, phase=Phase.SERVING)),)), True, False),
        (Changes(peers=(status(Contact.SILENT, said=report(1, phase=Phase.LOADING)),)), True, False),
        (Changes(peers=(status(said=report(1, phase=Phase.LOADING, message="50 %")),)), False, True),
        (Changes(memory=MemoryReport(TOTAL, FREE - NOISE_BYTES)), False, True),
        (Changes(memory=MemoryReport(TOTAL, FREE - NOISE_BYTES + 1)), False, False),
        (Changes(memory=None), False, True),
    ],
)
def test_what_others_wait_for_is_published_at_once_progress_at_a_pace_and_noise_not_at_all(
    changes: Changes, at_once: bool, later: bool
) -> None:
    published: list[NodeReport] = []
    now = [100.0]
    first = report(0, peers=(PEER,), memory=MemoryReport(TOTAL, FREE))
    made = Reporter(first, (published.append,), lambda: now[0])
    made.publish()
    made.update(**changes)
    assert len(published) == 1 + at_once
    now[0] += 0.75 * PACE_SECONDS
    made.update()
    assert len(published) == 1 + at_once
    now[0] += PACE_SECONDS
    made.update()
    assert len(published) == 1 + at_once + later


def test_small_changes_of_memory_add_up() -> None:
    published: list[NodeReport] = []
    made = Reporter(report(0), (published.append,), itertools.count(100, PACE_SECONDS).__next__)
    for step in range(5):
        made.update(memory=MemoryReport(TOTAL, FREE - step * NOISE_BYTES // 2))
    free = [one.memory and one.memory.available_bytes for one in published]
    assert free == [FREE, FREE - NOISE_BYTES, FREE - 2 * NOISE_BYTES]
