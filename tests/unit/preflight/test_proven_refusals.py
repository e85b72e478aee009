"""A refusal by which a node may reboot is proven only where nothing unsure stands beside it."""

from __future__ import annotations

import pytest

from sparkd.agent.preflight.check import Finding, Level, Verdict, combine_verdicts
from sparkd.agent.preflight.gate import GateResult
from sparkd.base.lib.errors import Action, NeedsPersonError


@pytest.mark.parametrize(("level", "proven"), [(Level.BLOCK, True), (Level.UNKNOWN, False)])
def test_an_unsure_finding_beside_one_that_needs_a_reboot_leaves_that_unproven(level: Level, proven: bool) -> None:
    findings = (
        Finding("gpu", Verdict(Level.BLOCK, "reset", needs_person=True, action=Action.REBOOT), {}, 0),
        Finding("hook:10-site", Verdict(level, "?"), {}, 0),
    )
    refusal = GateResult((), findings, ()).refusal()
    assert isinstance(refusal, NeedsPersonError)
    assert refusal.proven is proven


def test_an_unsure_verdict_in_the_same_check_leaves_a_reboot_unproven() -> None:
    """As an engine that can't be ended, beside one whose owner is unknown: a reboot would end that too."""
    stuck = Verdict(Level.BLOCK, "asleep", needs_person=True, action=Action.REBOOT)
    for other, proven in ((Verdict(Level.UNKNOWN, "whose is it?"), False), (Verdict(Level.WARN, "old"), True)):
        refusal = GateResult((), (Finding("stray-workers", combine_verdicts((other, stuck), ""), {}, 0),), ()).refusal()
        assert isinstance(refusal, NeedsPersonError)
        assert refusal.action is Action.REBOOT
        assert refusal.proven == proven
