"""What this node's earlier benches say of the newest one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sparkd.base.lib import prepared
from sparkd.base.lib.text import sanitize
from sparkd.base.state.history import Bench, Launch, Row, describe_change, describe_slower_load, find_decline
from sparkd.base.state.history import find_usual as median_before
from sparkd.base.state.known_good import format_utc
from sparkd.tools.measure.bench import Result
from sparkd.tools.measure.figures import Level, find_level, spread


class Run(NamedTuple):
    result: Result
    launch: Launch | None
    """The launch that was measured; None where the history has it no more."""


class Usual(NamedTuple):
    runs: int
    since: str
    same_plan: bool
    levels: tuple[Level, ...]
    """Levels whose rate is the median of all runs, with their spread."""


def find_runs(rows: Iterable[Row]) -> tuple[Run, ...]:
    """Oldest first; without those that this version can't read."""
    known = list(rows)
    launches = {row.id: row for row in known if isinstance(row, Launch)}
    runs = []
    for row in known:
        if isinstance(row, Bench):
            with suppress(ValueError):
                runs.append(Run(msgspec.json.decode(row.figures, type=prepared(Result)), launches.get(row.launch)))
    return tuple(runs)


def find_usual(benchmark: Result, earlier: Sequence[Run]) -> Usual | None:
    """What is usual by runs of the same plan, else of the same recipe, with the same lengths; None without any."""
    alike = [run.result for run in earlier if _are_alike(run.result, benchmark)]
    runs = [run for run in alike if run.plan == benchmark.plan] or alike
    rates = ((level, spread(filter(None, (_rate(run, level) for run in runs)))) for level in benchmark.levels)
    levels = tuple(replace(level, output_tokens_per_second=rate) for level, rate in rates if rate)
    return Usual(len(runs), runs[0].made, runs[0].plan == benchmark.plan, levels) if runs else None


def describe_slower(runs: Sequence[Run]) -> tuple[str, ...]:
    """A line for each number of requests at which the last run is slower, with what changed since."""
    lines = []
    for level in runs[-1].result.levels if runs else ():
        alike = [run for run in runs if _are_alike(run.result, runs[-1].result)]
        known = [(run, rate) for run in alike if (rate := _rate(run.result, level)) is not None]
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


def _are_alike(*runs: Result) -> bool:
    return len({(run.recipe, run.prompt_tokens, run.answer_tokens) for run in runs}) == 1


def _rate(benchmark: Result, like: Level) -> float | None:
    level = find_level(benchmark.levels, like)
    return level.output_tokens_per_second.median if level and level.output_tokens_per_second else None


def as_json(rows: Sequence[Row], totals: object, last: int) -> str:
    """One object: the last launches with their facts, what was measured of them, and totals."""
    launches = [row for row in rows if isinstance(row, Launch)][-last:]
    ids = {launch.id for launch in launches}
    others = [row for row in rows if not isinstance(row, Launch) and row.launch in ids]
    shown = {"schema": 1, "launches": launches, "measured": others, "totals": totals, "slower": find_slower(rows)}
    return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode()


def find_slower(rows: Sequence[Row]) -> tuple[str, ...]:
    """How the last launch and the last bench are slower."""
    launches = [row for row in rows if isinstance(row, Launch)]
    same = [launch for launch in launches if (launch.recipe, launch.rank) == (launches[-1].recipe, launches[-1].rank)]
    loads = describe_slower_load(same)
    return (*((f"{sanitize(same[-1].recipe)}: {loads}",) if loads else ()), *describe_slower(find_runs(rows)))
