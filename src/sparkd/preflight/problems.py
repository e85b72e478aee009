"""Several things wrong at once, made into one verdict."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sparkd.preflight.check import Level, Verdict
from sparkd.preflight.fixes import Fix

SHOWN = 4
"""Problems named in one reason; a person who has mended these looks again."""
ORDER = (Level.BLOCK, Level.UNKNOWN, Level.WARN, Level.OK)
"""Worst first."""


class Problem(Struct, frozen=True):
    """One thing found. Where it blocks and carries fixes, they are enough to clear it."""

    level: Level
    reason: str
    hint: str = ""
    fixes: tuple[Fix, ...] = ()
    needs_person: bool = False
    awaits: str = ""

    @property
    def clearable(self) -> bool:
        return bool(self.fixes)


def worst(levels: Sequence[Level]) -> Level:
    return min(levels, key=ORDER.index, default=Level.OK)


def verdict(problems: Sequence[Problem], good: str) -> Verdict:
    """What no fix clears is named first, and its hint is the verdict's. `good` is said where there is no problem."""
    if not problems:
        return Verdict(Level.OK, good)
    ranked = sorted(problems, key=lambda one: (ORDER.index(one.level), not one.needs_person, one.clearable))
    blocking = [one for one in ranked if one.level.blocks]
    stuck = [one for one in blocking if not one.clearable]
    more = f"; and {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    return Verdict(
        level=ranked[0].level,
        reason="; ".join(one.reason for one in ranked[:SHOWN]) + more,
        hint=(stuck or ranked)[0].hint,
        fixes=tuple(dict.fromkeys(fix for one in ranked for fix in one.fixes)),
        clears=bool(blocking) and not stuck,
        needs_person=any(one.needs_person for one in problems),
        awaits=stuck[0].awaits if stuck and all(one.awaits for one in stuck) else "",
    )
