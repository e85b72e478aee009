"""The interface of a check: `probe` reads, `judge` decides, and the verdict carries the fixes."""

from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import ClassVar, Generic, Self, TypeVar

from msgspec import Struct

from sparkd.agent.preflight.fixes import EndProcess, Fix
from sparkd.base.host import Host
from sparkd.base.lib.errors import Action
from sparkd.base.plan.inputs import CheckInputs

F = TypeVar("F")
MOST_NAMED = 4
"""Problems named in one reason; after fixing these, a person runs preflight again."""


class Level(Enum):
    """The result of a check. UNKNOWN (it could not look) blocks as BLOCK does.

    SKIPPED blocks nothing: the check does not apply, or lacks the plan or docker, for which a start waits anyway.
    """

    OK = "ok"
    SKIPPED = "skipped"
    WARN = "warn"
    BLOCK = "block"
    UNKNOWN = "unknown"

    @property
    def blocks(self) -> bool:
        return self in (Level.BLOCK, Level.UNKNOWN)

    @property
    def severity(self) -> int:
        """0 is the worst."""
        return (Level.BLOCK, Level.UNKNOWN, Level.WARN, Level.OK, Level.SKIPPED).index(self)


class Verdict(Struct, frozen=True):
    """A judgement of a check's facts, or of one of its problems: `combine_verdicts` makes one of several.

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
    action: Action | None = None
    """What a person has to do; None: as `required` derives it from the level."""
    unsure: bool = False
    """Whether one of its problems is UNKNOWN, also where another one blocks by proof."""
    awaits: str = ""
    """What may come by itself and clear this, such as "docker": preflight waits for it. Empty where nothing may."""
    offers: tuple[tuple[EndProcess, ...], ...] = ()
    """Processes, each with its descendants, that `sparkd preflight --fix PID` ends."""

    @property
    def required(self) -> str:
        """The `Action` that is needed; empty where nothing blocks and none is known."""
        return self.action or (Action.INSPECT if self.level.blocks else "")


ok = partial(Verdict, Level.OK)
skipped = partial(Verdict, Level.SKIPPED)
warn = partial(Verdict, Level.WARN)
block = partial(Verdict, Level.BLOCK)
unknown = partial(Verdict, Level.UNKNOWN)


def combine_verdicts(problems: Iterable[Verdict], good: str) -> Verdict:
    """Several problems as one verdict, the worst first. `good`: the reason where there are none.

    Its fixes clear it if every problem that blocks carries some. Otherwise a problem that blocks and carries none gives
    the hint and the action.
    """
    ranked = sorted(
        problems, key=lambda problem: (problem.level.severity, not problem.needs_person, bool(problem.fixes))
    )
    if not ranked:
        return ok(good)
    blocking = [problem for problem in ranked if problem.level.blocks]
    unfixable = [problem for problem in blocking if not problem.fixes]
    more = f"; and {len(ranked) - MOST_NAMED} more" if len(ranked) > MOST_NAMED else ""
    return Verdict(
        level=ranked[0].level,
        reason="; ".join(problem.reason for problem in ranked[:MOST_NAMED]) + more,
        hint=(unfixable or ranked)[0].hint,
        fixes=tuple(dict.fromkeys(fix for problem in ranked for fix in problem.fixes)),
        clears=bool(blocking) and not unfixable,
        needs_person=any(problem.needs_person for problem in ranked),
        action=(unfixable or ranked)[0].action,
        unsure=any(problem.level is Level.UNKNOWN for problem in ranked),
        awaits=unfixable[0].awaits if unfixable and all(problem.awaits for problem in unfixable) else "",
        offers=tuple(offer for problem in ranked for offer in problem.offers),
    )


class AnyCheck(Struct, frozen=True):
    """Base type for lists of checks; subclass `Check`. docs/sparkd-checks.7.md has each one's page."""

    id: ClassVar[str]
    levels: ClassVar[tuple[Level, ...]]
    """Its levels besides OK. A check whose probe fails is UNKNOWN, or warns where none of these blocks."""
    fixes: ClassVar[tuple[str, ...]] = ()
    """Kinds of `Fix` that it may propose."""

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> Self:
        """Build the check from the inputs that have the names of its fields; one with other fields overrides this.

        Raises PlanNeededError where an input comes from the plan, and there is none.
        """
        return cls(**{name: getattr(inputs, name) for name in cls.__struct_fields__})

    def run(self, host: Host) -> tuple[object, Verdict]:
        """Probe, then judge. Returns the facts and the verdict."""
        raise NotImplementedError


class Check(AnyCheck, Generic[F], frozen=True):
    """One concern; subclass it. `F` is a frozen Struct of facts; its public fields become the finding's evidence."""

    def probe(self, host: Host) -> F:
        """Read the machine. Whatever it raises makes the check UNKNOWN."""
        raise NotImplementedError

    def judge(self, facts: F) -> Verdict:
        """Pure: decide from the facts alone."""
        raise NotImplementedError

    def run(self, host: Host) -> tuple[F, Verdict]:
        facts = self.probe(host)
        return facts, self.judge(facts)


class Finding(Struct, frozen=True):
    """A verdict with its check's id, the evidence, and the duration."""

    id: str
    verdict: Verdict
    facts: dict[str, object]
    seconds: float
