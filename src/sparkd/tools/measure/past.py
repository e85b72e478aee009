"""What this node's earlier benches say of the newest one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sparkd.base.lib.text import sanitize
from sparkd.base.state.history import Bench, Launch, Row, describe_change, describe_slower_load, find_decline
from sparkd.base.state.history import find_usual as median_before
from sparkd.base.state.known_good import format_utc
from sparkd.tools.measure.bench import Result
from sparkd.tools.measure.figures import Level, find_level, spread


class Run(NamedTuple):
    result: Result
    launch: Launch | None
    """None where the history has it no more."""


class Usual(NamedTuple):
    runs: int
    since: str
    same_plan: bool
    levels: tuple[Level, ...]
    """With the median of all runs, and their spread, as the rate."""


def find_runs(rows: Iterable[Row]) -> tuple[Run, ...]:
    """Oldest first; without those that this version can't read."""
    known = list(rows)
    launches = {one.id: one for one in known if isinstance(one, Launch)}
    found = []
    for row in known:
        if isinstance(row, Bench):
            with suppress(ValueError):
                found.append(Run(msgspec.json.decode(row.figures, type=Result), launches.get(row.launch)))
    return tuple(found)


def find_usual(found: Result, earlier: Sequence[Run]) -> Usual | None:
    """By runs of the same plan, else by those of the same recipe, with the same lengths; None without any."""
    alike = [one.result for one in earlier if _alike(one.result, found)]
    same = [one for one in alike if one.plan == found.plan]
    runs = same or alike
    rates = ((level, spread(filter(None, (_rate(one, level) for one in runs)))) for level in found.levels)
    levels = tuple(replace(level, output_tokens_per_second=rate) for level, rate in rates if rate)
    return Usual(len(runs), runs[0].made, bool(same), levels) if runs else None


def describe_slower(runs: Sequence[Run]) -> tuple[str, ...]:
    """Of the last one, a line for each number of requests that has become slower, with what changed since."""
    lines = []
    for level in runs[-1].result.levels if runs else ():
        alike = [(one, _rate(one.result, level)) for one in runs if _alike(one.result, runs[-1].result)]
        known = [(one, rate) for one, rate in alike if rate is not None]
        start = find_decline([rate for _, rate in known], more_is_better=True)
        if start is None or known[-1][0] is not runs[-1]:
            continue
        (before, _), (since, _), (last, rate) = known[start - 1], known[start], known[-1]
        usual = median_before([rate for _, rate in known], start)
        changes = "what changed is not known any more"
        if before.launch is not None and last.launch is not None:
            changes = describe_change(before.launch.facts, last.launch.facts)
        what = f"{sanitize(last.result.recipe)}, {level.concurrency} at once"
        rates = f"{rate:.1f} tokens/s, {usual:.1f} before"
        lines.append(f"{what}: slower since {format_utc(since.result.made)}: {rates}; {changes}")
    return tuple(lines)


def _alike(one: Result, other: Result) -> bool:
    return (one.recipe, one.prompt_tokens, one.answer_tokens) == (
        other.recipe,
        other.prompt_tokens,
        other.answer_tokens,
    )


def _rate(result: Result, like: Level) -> float | None:
    level = find_level(result.levels, like)
    return level.output_tokens_per_second.median if level and level.output_tokens_per_second else None


def as_json(rows: Sequence[Row], totals: object, last: int) -> str:
    """One object: the last launches with their facts, what was measured of them, and totals."""
    launches = [one for one in rows if isinstance(one, Launch)][-last:]
    shown = {one.id for one in launches}
    others = [one for one in rows if not isinstance(one, Launch) and one.launch in shown]
    found = {"schema": 1, "launches": launches, "measured": others, "totals": totals, "slower": find_slower(rows)}
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def find_slower(rows: Sequence[Row]) -> tuple[str, ...]:
    """Of the last launch and the last bench."""
    launches = [one for one in rows if isinstance(one, Launch)]
    same = [one for one in launches if (one.recipe, one.rank) == (launches[-1].recipe, launches[-1].rank)]
    loads = describe_slower_load(same)
    return (*((f"{sanitize(same[-1].recipe)}: {loads}",) if loads else ()), *describe_slower(find_runs(rows)))
