"""The interface of a check: `probe` reads, `judge` decides, and the verdict carries the fixes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from sparkd.host import Host
from sparkd.preflight.fixes import Fix

F = TypeVar("F")
SHOWN = 4
"""Problems named in one reason; after fixing these, a person runs preflight again."""


class About(Struct, frozen=True):
    """A check's row in docs/checks.md, and its page: what `sparkd preflight --explain` prints.

    Every check may also be `ok`. One whose probe fails is `unknown`, or warns where `levels` has none that blocks.
    """

    levels: tuple[Level, ...]
    reads: str
    source: str
    """Why this matters: title and author, section, issue, or measurement."""
    page: str
    fixes: tuple[str, ...] = ()
    """Kinds of `Fix` that it may propose."""


class Level(Enum):
    """How a check came out. UNKNOWN (could not look) blocks as BLOCK does."""

    OK = "ok"
    WARN = "warn"
    BLOCK = "block"
    UNKNOWN = "unknown"

    @property
    def blocks(self) -> bool:
        return self in (Level.BLOCK, Level.UNKNOWN)

    @property
    def severity(self) -> int:
        """0 is the worst."""
        return (Level.BLOCK, Level.UNKNOWN, Level.WARN, Level.OK).index(self)


class Verdict(Struct, frozen=True):
    """A check's judgement of its facts.

    A WARN may carry `fixes` too. A blocking verdict is clearable when `clears` is set (its own fixes are enough),
    or when the fixes of all checks together free `shortage_bytes`.
    """

    level: Level
    reason: str
    hint: str = ""
    fixes: tuple[Fix, ...] = ()
    clears: bool = False
    shortage_bytes: int = 0
    needs_person: bool = False
    awaits: str = ""
    """What may come by itself and clear this, such as "docker": preflight waits for it. Empty: nothing."""


class Problem(Struct, frozen=True):
    """One of several things found. Where it blocks and carries fixes, they are enough to clear it."""

    level: Level
    reason: str
    hint: str = ""
    fixes: tuple[Fix, ...] = ()
    needs_person: bool = False
    awaits: str = ""


def verdict(problems: Sequence[Problem], good: str) -> Verdict:
    """Problems as one verdict, the ones without a fix first. `good`: the reason where there are none."""
    if not problems:
        return Verdict(Level.OK, good)
    ranked = sorted(problems, key=lambda one: (one.level.severity, not one.needs_person, bool(one.fixes)))
    blocking = [one for one in ranked if one.level.blocks]
    stuck = [one for one in blocking if not one.fixes]
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


class Check(Struct, Generic[F], frozen=True):
    """One concern; subclass it. `F` is a frozen Struct of facts; its public fields become the finding's evidence."""

    about: ClassVar[About]
    id: ClassVar[str]

    def probe(self, host: Host) -> F:
        """Read the machine. May raise: that is UNKNOWN."""
        raise NotImplementedError

    def judge(self, facts: F) -> Verdict:
        """Pure: decide from the facts alone."""
        raise NotImplementedError

    def run(self, host: Host) -> tuple[F, Verdict]:
        """Probe, then judge."""
        facts = self.probe(host)
        return facts, self.judge(facts)


class AnyCheck(Protocol):
    """A check of any facts, for a list of several."""

    about: ClassVar[About]
    id: ClassVar[str]

    def run(self, host: Host) -> tuple[object, Verdict]: ...


class Finding(Struct, frozen=True):
    """A verdict with its check's id, the evidence, and the duration."""

    id: str
    verdict: Verdict
    facts: dict[str, object]
    """As `--json` shows them."""
    seconds: float
