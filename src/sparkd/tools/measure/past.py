"""The newest bench and load compared with earlier ones, and the history as JSON, with its declines. Pure."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sparkd.base.lib import prepared
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_utc
from sparkd.base.state.decline import describe_change, describe_slower_load, find_decline, median_before
from sparkd.base.state.history import Bench, Launch, Row
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LevelFigures, find_level, spread


class Run(NamedTuple):
    """A bench of the history."""

    result: Benchmark
    launch: Launch | None
    """The launch that was measured; None where the history no longer has it."""


class Usual(NamedTuple):
    """The usual figures by earlier runs."""

    runs: int
    """Number of these runs."""
    since: str
    """Time of the first one: UTC, ISO 8601."""
    same_plan: bool
    """Whether their plan is that of the newest one; else only the recipe is the same."""
    levels: tuple[LevelFigures, ...]
    """Levels whose rate is the median of all runs, with their spread."""


def find_runs(rows: Iterable[Row]) -> tuple[Run, ...]:
    """The benches, oldest first; without those that this version can't read."""
    every_row = list(rows)
    launches = {row.id: row for row in every_row if isinstance(row, Launch)}
    runs = []
    for row in every_row:
        if isinstance(row, Bench):
            with suppress(ValueError):
                runs.append(Run(msgspec.json.decode(row.figures, type=prepared(Benchmark)), launches.get(row.launch)))
    return tuple(runs)


def usual_figures(benchmark: Benchmark, earlier: Sequence[Run]) -> Usual | None:
    """Usual figures by earlier runs with the same lengths, of the same plan or else recipe; None without such runs."""
    alike = [run.result for run in earlier if _are_alike(run.result, benchmark)]
    runs = [run for run in alike if run.plan == benchmark.plan] or alike
    rates = ((level, spread(filter(None, (_find_rate(run, level) for run in runs)))) for level in benchmark.levels)
    levels = tuple(replace(level, output_tokens_per_second=rate) for level, rate in rates if rate)
    return Usual(len(runs), runs[0].made, runs[0].plan == benchmark.plan, levels) if runs else None


def describe_slower_benches(runs: Sequence[Run]) -> tuple[str, ...]:
    """A line for each number of requests at which the last run is slower, with what changed since."""
    if not runs:
        return ()
    alike = [run for run in runs if _are_alike(run.result, runs[-1].result)]
    lines = []
    for level in runs[-1].result.levels:
        rated = [(run, rate) for run in alike if (rate := _find_rate(run.result, level)) is not None]
        first_slow = find_decline([rate for _, rate in rated], more_is_better=True)
        if first_slow is not None and rated[-1][0] is runs[-1]:
            lines.append(_describe_slower_level(level, rated, first_slow))
    return tuple(lines)


def _describe_slower_level(level: LevelFigures, rated: Sequence[tuple[Run, float]], first_slow: int) -> str:
    """`rated`: runs with their rates, the oldest first. `first_slow`: index of the first run that is slower."""
    last_good, (last, rate) = rated[first_slow - 1][0], rated[-1]
    changes = "what changed is not known any more"
    if last_good.launch is not None and last.launch is not None:
        changes = describe_change(last_good.launch.facts, last.launch.facts)
    where = f"{sanitize(last.result.recipe)}, {level.concurrency} at once"
    since = format_utc(rated[first_slow][0].result.made)
    before = median_before([earlier_rate for _, earlier_rate in rated], first_slow)
    return f"{where}: slower since {since}: {rate:.1f} tokens/s, {before:.1f} before; {changes}"


def _are_alike(*runs: Benchmark) -> bool:
    """Whether they are of one recipe, with the same lengths of prompt and answer."""
    return len({(run.recipe, run.prompt_tokens, run.answer_tokens) for run in runs}) == 1


def _find_rate(benchmark: Benchmark, like: LevelFigures) -> float | None:
    level = find_level(benchmark.levels, like)
    return level.output_tokens_per_second.median if level and level.output_tokens_per_second else None


def history_as_json(rows: Sequence[Row], totals: object, last: int) -> str:
    """One object: the `last` launches with their facts, their other rows, the totals, and what is slower."""
    launches = [row for row in rows if isinstance(row, Launch)][-last:]
    ids = {launch.id for launch in launches}
    measured = [row for row in rows if not isinstance(row, Launch) and row.launch in ids]
    shown = {
        "schema": 1,
        "launches": launches,
        "measured": measured,
        "totals": totals,
        "slower": describe_decline(rows),
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=1).decode()


def describe_decline(rows: Sequence[Row]) -> tuple[str, ...]:
    """Lines on the last launch and the last bench, where they are slower than earlier ones."""
    launches = [row for row in rows if isinstance(row, Launch)]
    alike = [launch for launch in launches if (launch.recipe, launch.rank) == (launches[-1].recipe, launches[-1].rank)]
    slower_load = describe_slower_load(alike)
    load_lines = (f"{sanitize(alike[-1].recipe)}: {slower_load}",) if slower_load else ()
    return (*load_lines, *describe_slower_benches(find_runs(rows)))
