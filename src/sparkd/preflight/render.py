"""Findings as a table for people, and as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from sparkd.lib.tables import Parts, Table
from sparkd.preflight.check import Finding, JsonValue
from sparkd.preflight.examine import fixes_to_apply, overall
from sparkd.preflight.fixes import Fix

SCHEMA = 1
WOULD_APPLY = "would apply"
HELD_BACK = "held back"
"""Not to be applied, since something else blocks that no fix clears."""


class FixState(Struct, frozen=True):
    """What became of a fix, or would."""

    fix: Fix
    state: str
    """would apply, held back, applied, stale or failed."""
    note: str = ""


class Shown(Struct, frozen=True):
    """All that one run of preflight has to say."""

    node: str
    role: str
    changes_nothing: bool
    """Whether it only looked."""
    findings: tuple[Finding, ...]
    """As things stand."""
    fixes: tuple[FixState, ...]
    before: tuple[Finding, ...] = ()
    """As things stood before fixes were applied; empty where none was."""
    hooks: tuple[str, ...] = ()
    """Operator hooks that a run which may act would run."""


def intended(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[FixState, ...]:
    """What would become of every fix."""
    would = fixes_to_apply(findings, allowed_kinds)
    every = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes)
    return tuple(FixState(fix, WOULD_APPLY if fix in would else HELD_BACK) for fix in every)


def as_json(shown: Shown) -> str:
    checks: list[JsonValue] = [_check(finding, shown) for finding in shown.findings]
    fields: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "node": shown.node,
        "role": shown.role,
        "dry_run": shown.changes_nothing,
        "verdict": overall(shown.findings).value,
        "needs_person": any(finding.verdict.needs_person for finding in shown.findings),
        "checks": checks,
        "before": [_check(finding, shown) for finding in shown.before],
        "hooks": list(shown.hooks),
    }
    return json.dumps(fields, indent=1) + "\n"


def _check(finding: Finding, shown: Shown) -> JsonValue:
    verdict = finding.verdict
    own = [*verdict.fixes, *(fix for one in shown.before if one.id == finding.id for fix in one.verdict.fixes)]
    fixes: list[JsonValue] = [
        {"kind": one.fix.kind, "target": one.fix.target, "state": one.state, "note": one.note}
        for one in shown.fixes
        if one.fix in own
    ]
    return {
        "id": finding.id,
        "level": verdict.level.value,
        "reason": verdict.reason,
        "hint": verdict.hint,
        "needs_person": verdict.needs_person,
        "facts": finding.facts,
        "fixes": fixes,
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
        lines += [f"{one.state}: {one.fix.kind} {one.fix.target}{_note(one)}" for one in shown.fixes]
    lines += [f"would run: {hook}" for hook in shown.hooks]
    word = overall(shown.findings).value
    person = ", and a person is needed" if any(one.verdict.needs_person for one in shown.findings) else ""
    return [*lines, "", f"{shown.node} ({shown.role}): {word}{person}"]


def _note(one: FixState) -> str:
    return f" ({one.note})" if one.note else ""


def _table(findings: Sequence[Finding]) -> Table:
    rows = []
    for finding in findings:
        verdict = finding.verdict
        hint = f" -> {verdict.hint}" if verdict.hint and verdict.level.value != "ok" else ""
        rows.append((f"{verdict.level.value.upper():8}{finding.id}", f"{verdict.reason}{hint}"))
    return Table(rows, levels=[finding.verdict.level.value for finding in findings])
