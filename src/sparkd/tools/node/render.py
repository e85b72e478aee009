"""Findings as a table for people and as one JSON object."""

import json
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, to_builtins

from sparkd.agent.preflight.check import Finding, Level
from sparkd.agent.preflight.fixes import FixState
from sparkd.agent.preflight.runner import fixes_to_apply, overall
from sparkd.base.lib.text import Parts, Table, format_utc

CONFIGURATION = "configuration"
"""Id of the finding on a configuration that makes no plan."""
WOULD_APPLY = "would apply"
HELD_BACK = "held back"
"""State of a fix that is not to be applied: it is not allowed, or a finding blocks that no fix clears."""


class Owner(Struct, frozen=True):
    """The living agent of this node; `phase` and `since` (UTC) are empty where it has not reported."""

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


class Shown(Struct, frozen=True):
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


def intended(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[FixState, ...]:
    """The fixes that the findings offer, each with whether it would be applied."""
    applied = fixes_to_apply(findings, allowed_kinds)
    fixes = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes)
    return tuple(FixState(fix, WOULD_APPLY if fix in applied else HELD_BACK) for fix in fixes)


def as_json(shown: Shown) -> str:
    fields = {
        "schema": 1,
        "node": shown.node,
        "role": shown.role,
        "dry_run": shown.changes_nothing,
        "verdict": overall(shown.findings).value,
        "needs_person": any(finding.verdict.needs_person for finding in shown.findings),
        "checks": [_check_as_json(finding, shown) for finding in shown.findings],
        "before": [_check_as_json(finding, shown) for finding in shown.before],
        "hooks": list(shown.hooks),
        "owner": to_builtins(shown.owner),
    }
    return json.dumps(fields, indent=1) + "\n"


def _check_as_json(finding: Finding, shown: Shown) -> dict[str, object]:
    verdict = finding.verdict
    verdicts = [verdict, *(earlier.verdict for earlier in shown.before if earlier.id == finding.id)]
    fixes = [fix for offering in verdicts for fix in offering.fixes]
    states = [state for state in shown.fixes if state.fix in fixes]
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


def parts(shown: Shown, *, every: bool = False) -> Parts:
    """The owner, tables of findings, fixes and hooks, a summary, and without a plan the next step.

    A table has a row for each finding that is not ok, the worst first; with `every` all, in the order of the checks.
    """
    lines: list[str | Table] = [str(shown.owner), ""] if shown.owner else []
    if shown.before:
        lines += ["before:", _make_table(shown.before, every, shown.node), ""]
    table = _make_table(shown.findings, every, shown.node)
    if table.rows:
        lines += [*(["after:"] if shown.before else []), table, ""]
    for state in shown.fixes:
        lines.append(f"{state.state}: {state.fix.kind} {state.fix.target}{state.note and f' ({state.note})'}")
    lines += [f"would run: {hook}" for hook in shown.hooks]
    if shown.fixes or shown.hooks:
        lines.append("")
    needs_person = any(finding.verdict.needs_person for finding in shown.findings)
    person_text = ", and a person is needed" if needs_person else ""
    level = overall(shown.findings).value
    lines.append(f"{shown.node} ({shown.role}): {level} ({_summarise(shown.findings)}){person_text}")
    hints = (finding.verdict.hint for finding in shown.findings if finding.id == CONFIGURATION)
    return [*lines, *(f"next: {hint}" for hint in hints if hint)]


def _summarise(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict.level for finding in findings)
    words = {Level.OK: "ok", Level.WARN: "warnings", Level.BLOCK: "blocks", Level.UNKNOWN: "unknown"}
    return ", ".join(f"{counts[level]} {words.get(level, level.value)}" for level in Level if counts[level])


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
