"""history.db: each launch on this node, and what was measured of it."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from sparkd.base.lib import prepared
from sparkd.base.lib.errors import Cause
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import FOLDER
from sparkd.base.state.launch_history import End

PATH = f"{FOLDER}/history.db"
MODE = 0o640
"""Readable by root and its group, which an administrator may change."""
LAUNCHES, ENDS = "launches", "ends."
"""Names of totals: of all launches, and the prefix of a `Cause` for those that ended by it."""
_COMPILER_ENDED = re.compile(r"[Nn]inja build failed|ninja: build stopped")
"""Messages of FlashInfer and of ninja. Most often they mean that a compiler was killed."""


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
    """Id of the launch that was tested."""
    recipe: str
    bad: int
    """Number of answers that make no sense, by `sparkd smoke`; by the test at a start, of kinds of fault."""
    faults: tuple[str, ...] = ()


class Bench(Struct, frozen=True, tag="bench", tag_field="kind"):
    id: str
    at: str
    launch: str
    """Id of the launch that was tested."""
    recipe: str
    figures: msgspec.Raw
    """The result of `sparkd bench`, as JSON."""


Row: TypeAlias = Launch | Smoke | Bench


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


def count_out_of_memory_loads(launches: Iterable[Launch], plan: str) -> int:
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
