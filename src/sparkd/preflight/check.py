"""The interface of a check: probe reads, judge thinks, and a verdict says what would mend it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.preflight.fixes import Fix

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]
"""What a finding may carry as evidence into `--json` and the report."""

F = TypeVar("F")


class About(Struct, frozen=True):
    """A check's row in docs/checks.md, and its page: what `sparkd preflight --explain` prints.

    Every check may also be `ok`. One that could not look at all is `unknown`, or warns where `levels` has none that
    blocks.
    """

    levels: tuple[Level, ...]
    reads: str
    source: str
    """Where it is known from that this matters: title and author, section, issue, or what was measured."""
    page: str
    fixes: tuple[str, ...] = ()
    """Kinds of `Fix` that it may ask for."""


class Level(Enum):
    """How a check came out. UNKNOWN (could not look) blocks as BLOCK does."""

    OK = "ok"
    WARN = "warn"
    BLOCK = "block"
    UNKNOWN = "unknown"

    @property
    def blocks(self) -> bool:
        return self in (Level.BLOCK, Level.UNKNOWN)


class Verdict(Struct, frozen=True):
    """What a check thinks of its facts.

    `fixes` may ride on a WARN too. A blocking verdict is clearable when `clears` is set (its own fixes are enough),
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
    """What may come up by itself and would clear this, such as "docker": preflight waits for it. Empty: nothing."""


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

    def look(self, host: Host) -> tuple[F, Verdict]:
        """Probe, then judge."""
        facts = self.probe(host)
        return facts, self.judge(facts)


class AnyCheck(Protocol):
    """A check of whatever facts, for a list of several."""

    about: ClassVar[About]
    id: ClassVar[str]

    def look(self, host: Host) -> tuple[object, Verdict]: ...


class Finding(Struct, frozen=True):
    """A verdict with its check's id, the evidence, and how long the look took."""

    id: str
    verdict: Verdict
    facts: dict[str, JsonValue]
    seconds: float
