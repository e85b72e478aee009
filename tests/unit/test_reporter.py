"""What is told of at once, and what at the reporter's pace."""

from __future__ import annotations

import pytest
from tests.unit.nodes import report, snapshot

from sparkd.report.node_report import Contact, NodeReport, Phase
from sparkd.report.reporter import Changes, Reporter

PEER = snapshot(said=report(1, phase=Phase.LOADING)).as_peer()


@pytest.mark.parametrize(
    ("changes", "at_once"),
    [
        (Changes(message="50 %"), False),
        (Changes(phase=Phase.LOADING), True),
        (Changes(epoch="e"), True),
        (Changes(plan_digest="d"), True),
        (Changes(peers=(snapshot(said=report(1, phase=Phase.SERVING)).as_peer(),)), True),
        (Changes(peers=(snapshot(Contact.SILENT, said=report(1, phase=Phase.LOADING)).as_peer(),)), True),
        (Changes(peers=(snapshot(said=report(1, phase=Phase.LOADING, message="50 %")).as_peer(),)), False),
    ],
)
def test_what_others_wait_for_is_told_at_once_and_progress_at_a_pace(changes: Changes, at_once: bool) -> None:
    told: list[NodeReport] = []
    reporter = Reporter(report(0, peers=(PEER,)), (told.append,))
    reporter.tell()
    reporter.update(**changes)
    assert len(told) == (2 if at_once else 1)
