"""When another rank is lost: one row for each thing that may have happened to it."""

from __future__ import annotations

import pytest
from tests.unit.nodes import report, snapshot

from sparkd.peers.snapshot import ENDING
from sparkd.peers.ties import Lost, Silent, Tie, judge, tie
from sparkd.report.node_report import Contact, Phase

HELD = Tie(1, "life-of-1", "e1")
RUNNING = report(phase=Phase.SERVING, epoch="e1")


@pytest.mark.parametrize(
    ("contact", "changes", "reason"),
    [
        (Contact.ANSWERS, {"incarnation": "another"}, "rank 1 on spark2 (10.0.0.2) has begun anew"),
        (
            Contact.ANSWERS,
            {"incarnation": "another", "last_cause": "RuntimeError: boom (exit 13)"},
            "rank 1 on spark2 (10.0.0.2) has begun anew; it ended before with: RuntimeError: boom (exit 13)",
        ),
        (Contact.ANSWERS, {"phase": Phase.BLOCKED, "message": "no"}, "rank 1 on spark2 (10.0.0.2) is blocked: no"),
        (Contact.ANSWERS, {"phase": Phase.FAILED, "message": "boom"}, "rank 1 on spark2 (10.0.0.2) failed: boom"),
        (Contact.ANSWERS, {"phase": Phase.STOPPING, "message": "bye"}, "rank 1 on spark2 (10.0.0.2) leaves: bye"),
        (Contact.ANSWERS, {"phase": Phase.STOPPED, "message": "bye"}, "rank 1 on spark2 (10.0.0.2) has left: bye"),
        (Contact.ANSWERS, {"epoch": "e2"}, "rank 1 on spark2 (10.0.0.2) belongs to another launch"),
        (
            Contact.REFUSED,
            {},
            "rank 1 on spark2 (10.0.0.2) is gone: 10.0.0.2 refuses connections, its agent ended without a word",
        ),
        # Its last words say more than the silence or the refusal after them.
        (Contact.REFUSED, {"phase": Phase.FAILED, "message": "boom"}, "rank 1 on spark2 (10.0.0.2) failed: boom"),
        (Contact.SILENT, {"phase": Phase.FAILED, "message": "boom"}, "rank 1 on spark2 (10.0.0.2) failed: boom"),
    ],
)
def test_what_happened_is_a_loss_at_once(contact: Contact, changes: dict[str, object], reason: str) -> None:
    seen = snapshot(contact, report(**{"phase": Phase.SERVING, "epoch": "e1", **changes}), heard_at=100.0)
    assert judge(HELD, seen, 100.0) == Lost(reason)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in ENDING])
@pytest.mark.parametrize("epoch", ["", "e1"])
def test_a_life_that_goes_on_is_none_whatever_it_does(phase: Phase, epoch: str) -> None:
    seen = snapshot(said=report(phase=phase, epoch=epoch), heard_at=100.0)
    assert isinstance(judge(HELD, seen, 100.0), Silent)


@pytest.mark.parametrize("contact", [Contact.ANSWERS, Contact.SILENT, Contact.UNSIGNED])
def test_silence_is_counted_from_the_last_good_answer_and_is_never_a_loss_here(contact: Contact) -> None:
    seen = snapshot(contact, RUNNING, heard_at=100.0, why="no answer within 8 s")
    reason = "rank 1 on spark2 (10.0.0.2) has been silent for 3600 s: no answer within 8 s"
    assert judge(HELD, seen, 3700.0) == Silent(3600.0, reason)


def test_a_tie_is_to_the_life_that_was_seen() -> None:
    assert tie(snapshot(said=report(3, incarnation="i")), "e") == Tie(3, "i", "e")
