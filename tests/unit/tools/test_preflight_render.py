"""What preflight shows of its findings, as JSON and as a table."""

import json

from tests.unit.preflight.findings import ALL, CACHE, DROP, END, GHOST, GOOD, STRAY, finding

from sparkd.agent.preflight.check import Finding, Level
from sparkd.agent.preflight.fixes import FixState
from sparkd.base.lib.text import plain
from sparkd.tools.node import render
from sparkd.tools.node.render import HELD_BACK, WOULD_APPLY, PreflightReport, as_json, parts


def shown(*findings: Finding, fixes: tuple[FixState, ...] = (), before: tuple[Finding, ...] = ()) -> PreflightReport:
    """What a dry run shows; with findings from before the fixes, what a run shows that applied them."""
    return PreflightReport(
        "spark1", "head", not before, findings, fixes, before, hooks=("/etc/sparkd/preflight.d/10-site",)
    )


def test_json_has_the_promised_shape() -> None:
    rendered = json.loads(as_json(shown(STRAY, fixes=render.intended_fixes((STRAY,), ALL))))
    (check,) = rendered.pop("checks")
    promised = {
        "schema": 1, "node": "spark1", "role": "head", "dry_run": True, "verdict": "block", "needs_person": False,
    }  # fmt: skip
    assert rendered.items() >= promised.items()
    assert set(check) == {"id", "level", "reason", "hint", "needs_person", "action", "facts", "fixes", "seconds"}
    assert check["fixes"][0] == {
        "kind": "end-process", "target": "pid 10 (VLLM::Worker_TP)", "state": "would apply", "note": "",
    }  # fmt: skip


def test_fixes_are_held_back_where_they_cannot_clear_everything() -> None:
    assert {fix.state for fix in render.intended_fixes((STRAY, CACHE), ALL)} == {WOULD_APPLY}
    assert {fix.state for fix in render.intended_fixes((STRAY, CACHE, GHOST), ALL)} == {HELD_BACK}


def test_an_applied_fix_shows_under_its_check() -> None:
    applied = FixState(END, "applied", "ended by SIGTERM")
    after = finding("stray-workers", Level.OK)
    rendered = json.loads(as_json(shown(after, fixes=(applied,), before=(STRAY,))))
    assert rendered["checks"][0]["fixes"][0]["state"] == "applied"
    assert rendered["before"][0]["level"] == "block"
    assert rendered["dry_run"] is False


def as_text(preflight: PreflightReport, *, every: bool = False) -> str:
    return plain(parts(preflight, every=every)) + "\n"


def test_the_table_shows_what_is_not_ok_the_worst_first_and_all_of_it_on_request() -> None:
    tight, late = finding("disk-room", Level.WARN), finding("memlock", Level.SKIPPED)
    preflight = shown(GOOD, tight, late, GHOST)
    short, whole = as_text(preflight).splitlines(), as_text(preflight, every=True).splitlines()
    for lines, ids in ((short, [GHOST.id, "disk-room"]), (whole, [GOOD.id, "disk-room", "memlock", GHOST.id])):
        assert [line.split()[1] for line in lines[: lines.index("")] if line[0] != " "] == ids
    assert short[-1] == whole[-1] == "spark1 (head): block (1 ok, 1 skipped, 1 warn, 1 block)"


def test_the_table_shows_findings_hints_fixes_hooks_and_verdict() -> None:
    text = as_text(shown(STRAY, GOOD, fixes=render.intended_fixes((STRAY,), ALL)))
    assert f"BLOCK   stray-workers  stray-workers said\n{'on spark1: do it':>39}\n" in text
    assert "would apply: end-process pid 10 (VLLM::Worker_TP)" in text
    assert "would run: /etc/sparkd/preflight.d/10-site" in text
    assert text.endswith("spark1 (head): block (1 ok, 1 block)\n")


def test_the_table_shows_both_looks_where_something_was_changed() -> None:
    text = as_text(shown(GOOD, fixes=(FixState(DROP, "failed", "EROFS"),), before=(CACHE,)), every=True)
    assert text.index("before:") < text.index("page-cache") < text.index("after:") < text.index("script-paths")
    assert "failed: drop-page-cache page cache (EROFS)" in text
