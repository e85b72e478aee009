"""Findings as a table for people and as one JSON object; the checks as docs/checks.md."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from sparkd.lib.text import Parts, Table
from sparkd.preflight.check import Finding, Level
from sparkd.preflight.fixes import FixState
from sparkd.preflight.registry import CHECKS
from sparkd.preflight.runner import fixes_to_apply, overall

SCHEMA = 1
WOULD_APPLY = "would apply"
HELD_BACK = "held back"
"""Not to be applied, since something else blocks that no fix clears."""


class Shown(Struct, frozen=True):
    node: str
    role: str
    changes_nothing: bool
    findings: tuple[Finding, ...]
    fixes: tuple[FixState, ...]
    before: tuple[Finding, ...] = ()
    """As things stood before fixes were applied; empty where none was."""
    hooks: tuple[str, ...] = ()


def intended(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[FixState, ...]:
    would = fixes_to_apply(findings, allowed_kinds)
    every = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes)
    return tuple(FixState(fix, WOULD_APPLY if fix in would else HELD_BACK) for fix in every)


def as_json(shown: Shown) -> str:
    fields = {
        "schema": SCHEMA,
        "node": shown.node,
        "role": shown.role,
        "dry_run": shown.changes_nothing,
        "verdict": overall(shown.findings).value,
        "needs_person": any(finding.verdict.needs_person for finding in shown.findings),
        "checks": [_check(finding, shown) for finding in shown.findings],
        "before": [_check(finding, shown) for finding in shown.before],
        "hooks": list(shown.hooks),
    }
    return json.dumps(fields, indent=1) + "\n"


def _check(finding: Finding, shown: Shown) -> dict[str, object]:
    verdict = finding.verdict
    own = [*verdict.fixes, *(fix for one in shown.before if one.id == finding.id for fix in one.verdict.fixes)]
    states = [one for one in shown.fixes if one.fix in own]
    return {
        "id": finding.id,
        "level": verdict.level.value,
        "reason": verdict.reason,
        "hint": verdict.hint,
        "needs_person": verdict.needs_person,
        "facts": finding.facts,
        "fixes": [{"kind": s.fix.kind, "target": s.fix.target, "state": s.state, "note": s.note} for s in states],
        "seconds": finding.seconds,
    }


def parts(shown: Shown) -> Parts:
    """One row a finding, then what was done, then the verdict."""
    lines: list[str | Table] = []
    if shown.before:
        lines += ["before:", _table(shown.before), "", "after:"]
    lines.append(_table(shown.findings))
    if shown.fixes:
        lines.append("")
        lines += [f"{one.state}: {one.fix.kind} {one.fix.target}{one.note and f' ({one.note})'}" for one in shown.fixes]
    lines += [f"would run: {hook}" for hook in shown.hooks]
    word = overall(shown.findings).value
    person = ", and a person is needed" if any(one.verdict.needs_person for one in shown.findings) else ""
    return [*lines, "", f"{shown.node} ({shown.role}): {word}{person}"]


def _table(findings: Sequence[Finding]) -> Table:
    rows = []
    for finding in findings:
        verdict = finding.verdict
        hint = f" -> {verdict.hint}" if verdict.hint and verdict.level is not Level.OK else ""
        rows.append((f"{verdict.level.value.upper():8}{finding.id}", f"{verdict.reason}{hint}"))
    return Table(rows, levels=[finding.verdict.level.value for finding in findings])


MANUAL = """\
<!-- Made by `make generate` from the checks themselves. -->
# Checks of `sparkd preflight`

They run in this order before every launch. `preflight.skip` and `preflight.downgrade` name them by id, and ids never
change. A check whose probe fails is `unknown`, which blocks; one that only ever warns, warns then.

| id | levels | reads | may fix | known from |
| --- | --- | --- | --- | --- |
"""


def checks_manual() -> str:
    """docs/checks.md: every check as a row, then its page."""
    rows, pages = "", ""
    for check in CHECKS:
        levels, fixes = ", ".join(level.value for level in check.levels), ", ".join(check.fixes) or "nothing"
        reads, source = (" ".join(text.split()) for text in (check.reads, check.source.replace("|", "\\|")))
        cells = (f"[`{check.id}`](#{check.id})", levels, reads, fixes, source)
        rows += f"| {' | '.join(cells)} |\n"
        pages += f"\n## {check.id}\n\n```text\n{check.page}\n```\n"
    return f"{MANUAL}{rows}{pages}"
