"""Beginning and end of a ladder: its conditions and an estimate of its time, then the recipe of its best step."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from sparkd.agent.actions import files
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError, NotReadyError, UsageError
from sparkd.base.lib.text import counted, sanitize
from sparkd.base.lib.times import format_duration, utc_now
from sparkd.base.recipes.lookup import ADMINISTRATORS, SUFFIX, find_recipes, recipe_folders
from sparkd.base.recipes.schema import KV_CACHE_TOKENS, Recipe
from sparkd.base.state.history import Row, last_load
from sparkd.base.state.switch import Chosen
from sparkd.base.vllm.args import JsonValue
from sparkd.tools.measure.climb import Climb, Tuning
from sparkd.tools.measure.figures import DECODE, FIRST
from sparkd.tools.measure.knobs import SEQUENCES, Knob, rungs, set_values
from sparkd.tools.measure.ladder import Position
from sparkd.tools.measure.measuring import MOST_AT_ONCE, expected_levels, read_rows
from sparkd.tools.measure.past import find_runs
from sparkd.tools.measure.trial import DEFAULT_CONCURRENCY, RUNS
from sparkd.tools.node.command_lock import usage_error

SMOKE_SECONDS, BENCH_SECONDS = 30.0, 60.0
"""Estimates for one step, where the history has none."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,100}", re.ASCII)


def refuse_name(base: str, name: str, host: Host) -> None:
    """Raises UsageError where the recipe to write would hide another, or could not extend `base`."""
    known = find_recipes(recipe_folders(Path(host.files.root)))
    if base not in known:
        raise UsageError("the first recipe needs a name, to be extended", "sparkd recipe list")
    if name in known:
        raise UsageError(f"there is a recipe {name} already: {known[name]}", "--name chooses another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {sanitize(name, 60)}: needed are small letters, digits, dots and dashes")


def refuse_without_effect(knobs: Iterable[Knob], base: Chosen, config: Settings, host: Host) -> None:
    """Raises UsageError for a knob without any rung, or whose rung leaves the engine's command as it is."""
    plan = membership.make_context(config, host, base).plan
    for knob in knobs:
        rung = next(chain(rungs(knob, up=True), rungs(knob, up=False)), None)
        if rung is None:
            raise UsageError(f"--knob {knob.name}: the bounds have the recipe's own value alone")
        with suppress(ConfigError):  # a rung without a plan will be a bad step
            recipe = set_values(base.recipe, base.recipe.name, {knob.name: rung})
            rung_plan = membership.make_context(config, host, replace(base, recipe=recipe)).plan
            if rung_plan.user_script or rung_plan.argv == plan.argv:
                reason = f"{knob.name} changes nothing: engine.args or engine.script holds over every recipe"
                raise UsageError(reason, "sparkd config show")


def choose_load(knobs: Iterable[Knob], base: Chosen) -> int:
    """The number of requests at once in all steps.

    It is the highest bound of max-num-seqs, else the highest number for which the recipe expects figures.
    """
    most_sequences = next((int(knob.high) for knob in knobs if knob.name == SEQUENCES), 0)
    return min(most_sequences or max(expected_levels(base.recipe), default=DEFAULT_CONCURRENCY), MOST_AT_ONCE)


def announce(tuning: Tuning, base: Chosen, host: Host) -> Iterator[str]:
    """Lines on the steps to come, and about how long they take."""
    rungs_by_knob = {knob: [tuple(rungs(knob, up=up)) for up in (True, False)] for knob in tuning.knobs}
    done_count, step_count = len(tuning.measured), 1 + sum(map(len, chain.from_iterable(rungs_by_knob.values())))
    steps = counted(step_count - done_count, "step") + (f" more, measured: {done_count}" if done_count else "")
    yield f"recipe {base.recipe.name} under {counted(tuning.at_once, 'request')} at once, at most {steps}:"
    for knob, both_ways in rungs_by_knob.items():
        up, down = (" ".join(map(str, values)) or "none" for values in both_ways)
        yield f"  {knob.name} {knob.start}: up {up}; down {down}"
    rows = read_rows(host)
    load_seconds = last_load(rows, lambda launch: launch.recipe == base.recipe.name) or last_load(rows)
    load_note = "the last load's time included"
    if load_seconds is None:
        load_note = "and a load each time, whose time is not known yet"
    step_seconds = SMOKE_SECONDS + _estimate_bench(rows, tuning.at_once) + (load_seconds or 0)
    all_seconds = step_seconds * (step_count - done_count)
    yield f"each about {format_duration(step_seconds)}, all {format_duration(all_seconds)}, {load_note}"
    yield "while the plan changes, no request is answered; in the end the plan before is in force again"


def _estimate_bench(rows: Sequence[Row], at_once: int) -> float:
    """Seconds of a step's bench, by the last bench with so many requests at once, whatever its recipe."""
    runs = find_runs(rows)
    levels = runs[-1].result.levels if runs else ()
    request = next((level.request_seconds for level in levels if level.concurrency == at_once), None)
    return request.median * (RUNS + 1) if request else BENCH_SECONDS  # one more: calibration, and a short first batch


def write_best(base: Chosen, climb: Climb, position: Position, host: Host, show: Callable[[str], None]) -> None:
    """Write the best step as a recipe, and remove the ladder's state.

    Raises UsageError where a file can't be written: the same command tries again. NotReadyError without a good step.
    """
    tuning = climb.tuning
    if position.values:
        path = Path(host.files.root, ADMINISTRATORS, f"{tuning.name}{SUFFIX}")
        text = render_recipe(base.recipe, tuning, position, utc_now())
        with usage_error(f"{path} can't be written"):
            files.write(path, text, 0o644, durable=True, overwrite=False)
        show(f"written: {path}; sudo sparkd use {tuning.name}")
    elif position.best is not None:
        show(f"nothing was better than recipe {base.recipe.name} beyond the spread: no recipe is written")
    climb.save(None)
    if position.best is None:
        reason = f"recipe {base.recipe.name} as it is: {tuning.measured[0].describe()}"
        raise NotReadyError(reason, "repair it first: sudo sparkd smoke")


def render_recipe(base: Recipe, tuning: Tuning, position: Position, finished_at: str) -> str:
    """The best step's recipe as YAML, with every step as a comment. `finished_at`: UTC, ISO 8601."""
    at_once = str(tuning.at_once)
    best_args = set_values(base, tuning.name, position.values).args
    args = {flag: value for flag, value in best_args.items() if base.args.get(flag) != value}
    expect: dict[str, JsonValue] = {}
    if (best := position.best) is not None:
        if best.kv_cache_tokens:
            expect[KV_CACHE_TOKENS] = best.kv_cache_tokens
        if best.rate:
            expect[DECODE] = {at_once: round(best.rate.median, 1)}
        if best.first_token_seconds is not None:
            expect[FIRST] = {at_once: round(best.first_token_seconds, 3)}
    description = f"{base.name}, with what measured best on this machine"
    lines = [
        f"# Measured by `sparkd tune-recipe` until {finished_at}, under {counted(tuning.at_once, 'request')} at once:",
        *(f"#   {measured.step}: {measured.describe()}" for measured in tuning.measured),
        "schema: 1",
        f"name: {json.dumps(tuning.name)}",
        f"description: {json.dumps(description)}",
        f"source: sparkd tune-recipe, {finished_at[:10]}",
        f"extends: {json.dumps(base.name)}",
    ]
    for section, values in (("args", args), ("expect", expect)):
        lines += [f"{section}:", *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
