"""Findings as a table for people and as one JSON object."""

import json
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, to_builtins

from sparkd.agent.preflight.check import Finding, Level
from sparkd.agent.preflight.fixes import FixState
from sparkd.agent.preflight.runner import fixes_to_apply, overall
from sparkd.base.lib.text import Parts, Table
from sparkd.base.lib.times import format_utc

CONFIGURATION = "configuration"
"""Id of the finding on a configuration that makes no plan."""
WOULD_APPLY = "would apply"
HELD_BACK = "held back"
"""State of a fix that is not to be applied: it is not allowed, or a finding blocks that no fix clears."""


class Owner(Struct, frozen=True):
    """The process that owns this node; `phase` and `since` (UTC) are empty where it has not reported."""

    pid: int
    command: str
    phase: str
    since: str
    released: tuple[str, ...]
    """Its containers, which the findings leave out: the next start will not meet them."""

    def __str__(self) -> str:
        process = f"pid {self.pid} ({self.command or 'of root'})"
        state = f"{self.phase} since {format_utc(self.since)}" if self.phase else "owns this node"
        names = ", ".join(self.released)
        return f"{process}: {state}" + (f"; judged is the next start, without its {names}" if names else "")


class PreflightReport(Struct, frozen=True):
    """The outcome of preflight, as people and programs see it."""

    node: str
    role: str
    changes_nothing: bool
    findings: tuple[Finding, ...]
    fixes: tuple[FixState, ...]
    before: tuple[Finding, ...] = ()
    """Findings before fixes were applied; empty where none was."""
    hooks: tuple[str, ...] = ()
    owner: Owner | None = None


def intended_fixes(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[FixState, ...]:
    """The fixes that the findings offer, each with whether it would be applied."""
    applied = fixes_to_apply(findings, allowed_kinds)
    fixes = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes)
    why = {fix: "something else blocks" if fix.kind in allowed_kinds else "by preflight.allow_fixes" for fix in fixes}
    return tuple(FixState(fix, WOULD_APPLY) if fix in applied else FixState(fix, HELD_BACK, why[fix]) for fix in fixes)


def as_json(report: PreflightReport) -> str:
    fields = {
        "schema": 1,
        "node": report.node,
        "role": report.role,
        "dry_run": report.changes_nothing,
        "verdict": overall(report.findings).value,
        "needs_person": any(finding.verdict.needs_person for finding in report.findings),
        "checks": [_check_as_json(finding, report) for finding in report.findings],
        "before": [_check_as_json(finding, report) for finding in report.before],
        "hooks": list(report.hooks),
        "owner": to_builtins(report.owner),
    }
    return json.dumps(fields, indent=1) + "\n"


def _check_as_json(finding: Finding, report: PreflightReport) -> dict[str, object]:
    verdict = finding.verdict
    verdicts = [verdict, *(earlier.verdict for earlier in report.before if earlier.id == finding.id)]
    fixes = [fix for offering in verdicts for fix in offering.fixes]
    states = [state for state in report.fixes if state.fix in fixes]
    return {
        "id": finding.id,
        "level": verdict.level.value,
        "reason": verdict.reason,
        "hint": verdict.hint,
        "needs_person": verdict.needs_person,
        "action": verdict.required,
        "facts": finding.facts,
        "fixes": [
            {"kind": state.fix.kind, "target": state.fix.target, "state": state.state, "note": state.note}
            for state in states
        ],
        "seconds": finding.seconds,
    }


def parts(report: PreflightReport, *, every: bool = False) -> Parts:
    """The owner, tables of findings, fixes and hooks, a summary, and without a plan the next step.

    A table has a row for each finding that is not ok, the worst first; with `every` all, in the order of the checks.
    """
    lines: list[str | Table] = [str(report.owner), ""] if report.owner else []
    if report.before:
        lines += ["before:", _make_table(report.before, every, report.node), ""]
    table = _make_table(report.findings, every, report.node)
    if table.rows:
        lines += [*(["after:"] if report.before else []), table, ""]
    for state in report.fixes:
        lines.append(f"{state.state}: {state.fix.kind} {state.fix.target}{state.note and f' ({state.note})'}")
    lines += [f"would run: {hook}" for hook in report.hooks]
    if report.fixes or report.hooks:
        lines.append("")
    hints = (finding.verdict.hint for finding in report.findings if finding.id == CONFIGURATION)
    nothing = ["nothing is to be done"] * (overall(report.findings) is Level.OK)
    return [*lines, summarise(report), *(f"next: {hint}" for hint in (*hints, *nothing) if hint)]


def summarise(report: PreflightReport) -> str:
    """One line: the verdict on the node, and how many findings each level has."""
    counts = Counter(finding.verdict.level for finding in report.findings)
    counted = ", ".join(f"{counts[level]} {level.value}" for level in Level if counts[level])
    needs_person = any(finding.verdict.needs_person for finding in report.findings)
    person_text = ", and a person is needed" if needs_person else ""
    return f"{report.node} ({report.role}): {overall(report.findings).value} ({counted}){person_text}"


def _make_table(findings: Sequence[Finding], every: bool, node: str) -> Table:
    if not every:
        not_ok = (finding for finding in findings if finding.verdict.level not in (Level.OK, Level.SKIPPED))
        findings = sorted(not_ok, key=lambda finding: finding.verdict.level.severity)
    rows, levels = list[tuple[str, ...]](), list[str]()
    for finding in findings:
        verdict = finding.verdict
        rows.append((f"{verdict.level.value.upper():8}{finding.id}", verdict.reason))
        levels.append(verdict.level.value)
        if verdict.hint and verdict.level is not Level.OK:
            rows.append(("", f"on {node}: {verdict.hint}"))
            levels.append("")
    return Table(rows, levels=levels)
