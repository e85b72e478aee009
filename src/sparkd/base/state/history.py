"""history.db: each launch on this node, what was measured of it, and whether the newest is worse than those before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from sparkd.base.lib import prepared
from sparkd.base.lib.errors import Cause
from sparkd.base.lib.text import sanitize
from sparkd.base.state.file import FOLDER
from sparkd.base.state.known_good import Facts, excerpt_values, find_differences, format_utc, group_files
from sparkd.base.state.launch_history import End

PATH = f"{FOLDER}/history.db"
MODE = 0o640
"""Readable by root and its group, which an administrator may change."""
MOST_CHANGES, NAME_LIMIT = 3, 60
"""Changes that one line names, and characters of each name."""
LAUNCHES, ENDS = "launches", "ends."
"""Names of totals: of all launches, and the prefix of a `Cause` for those that ended by it."""
FEWEST, MOST_EARLIER = 3, 10
"""Earlier values that show what is usual: with fewer there is no judgement, and of more the last ones count."""
TIMES_SPREAD, LEAST_SHARE = 3.0, 0.1
"""A decline is more than three standard deviations, estimated by the median deviation, and a tenth of the median."""
_COMPILER_ENDED = re.compile(r"[Nn]inja build failed|ninja: build stopped")
"""Messages of FlashInfer and of ninja. Most often they mean that a compiler was killed."""
DEVIATIONS = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""


class Launch(Struct, frozen=True, tag="launch", tag_field="kind"):
    """One start of this node's rank. Texts are redacted."""

    id: str
    """The rank's id."""
    at: str
    """UTC, ISO 8601, as all stamps."""
    rank: int
    plan: str
    """Digest of the agreement: of all that ranks share, also the image and the weights."""
    recipe: str
    facts: Facts
    image: str = ""
    """The image's id; empty before the container has started."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds in each step of the load."""
    load_seconds: float | None = None
    """Time from the container's start to the first completion; None where none came."""
    kv_cache_tokens: int | None = None
    first_tokens_per_second: float | None = None
    """Measured while requests ran, as is `last_tokens_per_second`."""
    last_tokens_per_second: float | None = None
    draft_acceptance: float | None = None
    served_seconds: float | None = None
    end: End | None = None
    """The launch's end; None while it runs and, where its agent was killed, until the next start."""


class Smoke(Struct, frozen=True, tag="smoke", tag_field="kind"):
    id: str
    at: str
    launch: str
    recipe: str
    bad: int
    """Number of answers that make no sense; of the test at a start, of kinds of such answers."""
    faults: tuple[str, ...] = ()


class Bench(Struct, frozen=True, tag="bench", tag_field="kind"):
    id: str
    at: str
    launch: str
    recipe: str
    figures: msgspec.Raw
    """The result of `sparkd bench`, as JSON."""


Row: TypeAlias = Launch | Smoke | Bench
"""`launch` of a test is the id of the launch that was tested."""


class Past(Struct, frozen=True):
    """The history that a new process reads."""

    launches: tuple[Launch, ...] = ()
    """Launches of that process's recipe and rank, oldest first."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Totals of all launches on this node, also those whose rows are gone."""


def decode(body: bytes) -> Row:
    """A row of its JSON. Raises ValueError."""
    row: Row = msgspec.json.decode(body, type=prepared(Row))  # type: ignore[arg-type]  # a union
    return row


def last_load(rows: Iterable[Row], fits: Callable[[Launch], bool] = lambda _: True) -> float | None:
    """Seconds of the newest load of a launch that fits; rows are oldest first. None where none is known.

    Only for estimates that are shown. Nothing is decided by them, so an unreadable history prevents no start.
    """
    launches = (row for row in rows if isinstance(row, Launch) and fits(row))
    loads = [launch.load_seconds for launch in launches if launch.load_seconds is not None]
    return loads[-1] if loads else None


def count_short_loads(launches: Iterable[Launch], plan: str) -> int:
    """Number of the plan's last loads, without a gap, that ended by a lack of memory. `launches`: oldest first."""
    count = 0
    for launch in reversed([launch for launch in launches if launch.plan == plan]):
        end = launch.end
        if end is None or launch.load_seconds is not None:
            break
        if end.cause not in (Cause.KERNEL_OOM, Cause.MEMORY_GUARD) and not _COMPILER_ENDED.search(end.reason):
            break
        count += 1
    return count


def find_decline(values: Sequence[float], *, more_is_better: bool) -> int | None:
    """First index from which on all values, oldest first, are a decline against those before it; None without one."""
    sign = 1 if more_is_better else -1
    for start in range(FEWEST, len(values)):
        earlier = values[max(0, start - MOST_EARLIER) : start]
        usual = find_usual(values, start)
        spread = DEVIATIONS * median(abs(value - usual) for value in earlier)
        worst = min(sign * value for value in earlier)  # as bad is usual, such as the first load after a boot
        limit = min(worst, sign * usual - max(TIMES_SPREAD * spread, LEAST_SHARE * usual))
        if all(sign * value < limit for value in values[start:]):
            return start
    return None


def find_usual(values: Sequence[float], start: int) -> float:
    """The median with which the values from `start` on are compared."""
    return median(values[max(0, start - MOST_EARLIER) : start])


def describe_change(earlier: Facts, current: Facts) -> str:
    """Known differences between two launches in one line, the likeliest cause first."""
    changes = group_files(find_differences(earlier, current))
    if not changes:
        return "nothing that sparkd knows of has changed"
    named_changes = changes[:MOST_CHANGES]
    texts = (f"{sanitize(change.name, NAME_LIMIT)} {' -> '.join(excerpt_values(change))}" for change in named_changes)
    more = f", and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
    return f"changed: {', '.join(texts)}{more}"


def describe_slower_load(launches: Sequence[Launch]) -> str:
    """A warning where loads have become slower, else empty. `launches`: of one recipe and rank, oldest first."""
    loads = [(launch, launch.load_seconds) for launch in launches if launch.load_seconds is not None]
    start = find_decline([seconds for _, seconds in loads], more_is_better=False)
    if start is None:
        return ""
    (before_decline, _), (first_slow, _), (newest, seconds) = loads[start - 1], loads[start], loads[-1]
    usual = find_usual([seconds for _, seconds in loads], start)
    return (
        f"loads are slower since {format_utc(first_slow.at)}: {seconds:.0f} s, {usual:.0f} s before; "
        f"{describe_change(before_decline.facts, newest.facts)}"
    )
