"""The watch over a serving engine: observe, decide, go on or quit. `decide` is pure.

vLLM's exit code and /health prove little (an engine that lost a rank exits 0, and /health stays 200): what counts is
that tokens and iterations move while requests run, and that a token can be had when nothing runs.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from sparkd.host.endpoint import Completion, Counters

DEAD_STATUS = 503
"""What vLLM's /health answers once it knows that its engine is dead."""


class Limits(Struct, frozen=True):
    """`canary_seconds` 0: no canary."""

    stall_seconds: float
    canary_seconds: float


class Observation(Struct, frozen=True):
    """One look. `health` is the status of /health, None for no answer; `counters` None where there are none to read.

    `canary` is the answer to a canary since the last look, None where none came in.
    """

    at: float
    health: int | None
    counters: Counters | None = None
    canary: Completion | None = None


class Watch(Struct, frozen=True):
    """What the watch remembers, in monotonic seconds."""

    answered_at: float
    """Last answer of the API server."""
    moved_at: float
    """Last sign of work done, or of no work to do."""
    proven_at: float
    """Last token known to be made."""
    work: tuple[float, float, float] | None = None
    canary_failed: str = ""


class GoOn(Struct, frozen=True):
    watch: Watch
    degraded: str = ""
    """What is wrong while the engine is still given time; empty when all is well."""
    wants_canary: bool = False


class Dead(Struct, frozen=True):
    """The engine has ended: exit 13."""

    reason: str


class Stalled(Struct, frozen=True):
    """The engine makes no tokens: exit 15."""

    reason: str


Decision = GoOn | Dead | Stalled


def decide(watch: Watch, seen: Observation, limits: Limits) -> Decision:
    """What to do after one more look."""
    if seen.health == DEAD_STATUS:
        return Dead(f"the engine is dead: /health answers {DEAD_STATUS}")
    watch = _remember(watch, seen)
    silent = seen.at - watch.answered_at
    still = seen.at - watch.moved_at
    if silent >= limits.stall_seconds:
        return Stalled(f"the API server has not answered for {silent:.0f} s")
    if still >= limits.stall_seconds:
        return Stalled(f"requests run and no token came for {still:.0f} s")
    return GoOn(
        watch,
        degraded=_trouble(watch, silent, still, limits),
        wants_canary=0 < limits.canary_seconds <= seen.at - watch.proven_at
        and (still == 0 or bool(watch.canary_failed)),
    )


def _remember(watch: Watch, seen: Observation) -> Watch:
    if seen.health is not None:
        watch = replace(watch, answered_at=seen.at)
    if seen.canary is not None and seen.canary.token:
        watch = replace(watch, proven_at=seen.at, moved_at=seen.at, canary_failed="")
    elif seen.canary is not None:
        watch = replace(watch, canary_failed=seen.canary.said)
    if seen.counters is None:
        # No statistics to read: then only an open canary can tell that the engine hangs.
        idle = not watch.canary_failed
        return replace(watch, moved_at=seen.at) if idle else watch
    moved = watch.work is None or seen.counters.work != watch.work
    if moved and watch.work is not None:
        watch = replace(watch, proven_at=seen.at, canary_failed="")
    if moved or not (seen.counters.busy or watch.canary_failed):
        watch = replace(watch, moved_at=seen.at)
    return replace(watch, work=seen.counters.work)


def _trouble(watch: Watch, silent: float, still: float, limits: Limits) -> str:
    """Worth telling after a tenth of the time that ends the engine."""
    if watch.canary_failed:
        return f"a canary completion failed: {watch.canary_failed}"
    if silent >= limits.stall_seconds / 10:
        return f"the API server has not answered for {silent:.0f} s"
    if still >= limits.stall_seconds / 10:
        return f"requests run and no token came for {still:.0f} s"
    return ""
