"""All checks, one after the other, into findings; and what the findings together allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sparkd.errors import ConfigError
from sparkd.host.one_look import OneLook
from sparkd.nearest import did_you_mean
from sparkd.preflight.check import AnyCheck, Finding, JsonValue, Level, Verdict
from sparkd.preflight.fixes import ORDER, Fix
from sparkd.preflight.problems import worst

if TYPE_CHECKING:
    from sparkd.host import Host


def examine(checks: Iterable[AnyCheck], host: Host) -> tuple[Finding, ...]:
    """Run every check. One that fails to look is UNKNOWN (or warns, where it never blocks), with what failed."""
    seen = OneLook(host)
    return tuple(_examine(check, seen) for check in checks)


def _examine(check: AnyCheck, host: Host) -> Finding:
    began = monotonic()
    facts: object = None
    try:
        facts, verdict = check.look(host)
    except Exception as error:  # the only one: whatever goes wrong in a check, it could not look, and that blocks
        reason = f"could not look: {type(error).__name__}: {error}"
        verdict = Verdict(_unseen(check), " ".join(reason.split()), "run as root; if it stays, report it")
    return Finding(check.id, verdict, evidence(facts), round(monotonic() - began, 4))


def _unseen(check: AnyCheck) -> Level:
    """Where a check could not look. One that never blocks, whatever it sees, does not block for not seeing it."""
    return Level.UNKNOWN if any(level.blocks for level in check.about.levels) else Level.WARN


def chosen(checks: Sequence[AnyCheck], skip: Sequence[str], known: Sequence[str]) -> tuple[AnyCheck, ...]:
    """The checks without those to skip. Raises ConfigError for an id that no check has."""
    for one in skip:
        _known_id("preflight.skip", one, known)
    return tuple(check for check in checks if check.id not in skip)


def downgraded(findings: Sequence[Finding], ids: Sequence[str], known: Sequence[str]) -> tuple[Finding, ...]:
    """Where these block, they warn. Raises ConfigError for an id that no check has."""
    for one in ids:
        _known_id("preflight.downgrade", one, known)
    return tuple(_downgraded(one) if one.id in ids and one.verdict.level.blocks else one for one in findings)


def _downgraded(finding: Finding) -> Finding:
    before = finding.verdict
    # A warning's fixes are applied: those of a finding that they could not clear must not be.
    fixes = before.fixes if before.clears else ()
    verdict = Verdict(Level.WARN, before.reason, before.hint, fixes)
    return replace(finding, verdict=verdict)


def _known_id(key: str, one: str, known: Sequence[str]) -> None:
    if one not in known:
        raise ConfigError(
            f"{key} names {one}, which is no check{did_you_mean(one, known)}", f"checks: {', '.join(known)}"
        )


def overall(findings: Iterable[Finding]) -> Level:
    """The worst level."""
    return worst([finding.verdict.level for finding in findings])


def blocking(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that block: what needs a person first, then what no fix clears, for that is what a person must mend."""
    found = [finding for finding in findings if finding.verdict.level.blocks]
    return tuple(sorted(found, key=lambda finding: (not finding.verdict.needs_person, finding.verdict.clears)))


def fixes_to_apply(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[Fix, ...]:
    """Every allowed fix, in the order in which to apply them; none unless they clear all that blocks."""
    if uncleared(findings, allowed_kinds):
        return ()
    fixes = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes if fix.kind in allowed_kinds)
    return tuple(sorted(fixes, key=lambda fix: ORDER.index(type(fix))))


def uncleared(findings: Sequence[Finding], allowed_kinds: Sequence[str]) -> tuple[Finding, ...]:
    """What blocks and no allowed fix clears."""
    fixes = dict.fromkeys(fix for finding in findings for fix in finding.verdict.fixes if fix.kind in allowed_kinds)
    freed_bytes = sum(fix.frees_bytes for fix in fixes)
    return tuple(one for one in blocking(findings) if not _cleared(one.verdict, allowed_kinds, freed_bytes))


def _cleared(verdict: Verdict, allowed_kinds: Sequence[str], freed_bytes: int) -> bool:
    if verdict.needs_person:
        return False
    if verdict.shortage_bytes:
        return freed_bytes >= verdict.shortage_bytes
    return verdict.clears and all(fix.kind in allowed_kinds for fix in verdict.fixes)


def evidence(facts: object) -> dict[str, JsonValue]:
    """The public fields of a Struct of facts, as JSON has them."""
    value = _json(facts)
    return value if isinstance(value, dict) else {}


def _json(value: object) -> JsonValue:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Struct):
        names = (name for name in value.__struct_fields__ if not name.startswith("_"))
        return {name: _json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _json(one) for key, one in value.items()}
    if isinstance(value, Iterable):
        return [_json(one) for one in value]
    return str(value)
