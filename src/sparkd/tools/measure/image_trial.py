"""`sparkd use --image`: a trial of the plan in force with another image, which stays unless it is slower.

The trial is a switch to a plan that ends at a time, so the agent goes back by itself if this command or the node dies.
"""

from collections.abc import Callable, Sequence
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, SparkdError
from sparkd.base.lib.text import counted, sanitize
from sparkd.base.lib.times import format_utc
from sparkd.base.state.facts import find_differences
from sparkd.base.state.history import Launch, Row
from sparkd.base.state.switch import Chosen, Stage, Switch, label
from sparkd.base.status.model import NodeReport, read_living_report
from sparkd.tools.measure import measuring, trial
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LEAST_DIFFERENCE, LevelFigures, Spread, describe_rate, is_faster
from sparkd.tools.measure.interrupts import hold_signals
from sparkd.tools.measure.past import find_runs
from sparkd.tools.node.served import open_endpoint
from sparkd.tools.node.switch_progress import await_service, follow
from sparkd.tools.node.switching import go_back, read_choice, time_after, write_switch


def find_baseline(rows: Sequence[Row], report: NodeReport | None) -> Benchmark | None:
    """The last bench of the plan that runs, on the node as it is; None without one. Pure.

    Of its levels only the one with the most requests at once is kept.
    """
    launches = {row.id: row for row in rows if isinstance(row, Launch)}
    current_launch = launches.get(report.launch_id) if report is not None else None
    if report is None or current_launch is None:
        return None
    for past_run in reversed(find_runs(rows)):
        launch, steady_levels = past_run.launch, [level for level in past_run.result.levels if _is_steady(level)]
        if launch is None or not steady_levels or past_run.result.plan != report.plan_digest:
            continue
        if not find_differences(launch.facts, current_launch.facts):
            return replace(past_run.result, levels=(max(steady_levels, key=lambda level: level.concurrency),))
    return None


def _is_steady(level: LevelFigures) -> bool:
    """Whether another level can be compared with it. Fewer than three batches have no spread."""
    is_whole = not level.failed and not level.compiled and level.requests >= 3 * level.concurrency
    return is_whole and level.output_tokens_per_second is not None


def bench_under_load(like: Benchmark | None = None) -> tuple[Benchmark, Spread]:
    """A short bench, under the load of `like` where that is given; it goes to the history.

    Raises SparkdError where requests fail, StillCompilingError, KeyboardInterrupt.
    """
    with open_endpoint(measuring.MOST_AT_ONCE) as served:
        at_once = max(measuring.expected_levels(served.node.recipe), default=trial.DEFAULT_CONCURRENCY)
        wanted = trial.short_bench(at_once)
        if like is not None:
            level = like.levels[0]
            load = {"prompt_tokens": like.prompt_tokens, "answer_tokens": like.answer_tokens}
            wanted = replace(wanted, concurrency=(level.concurrency,), staggered=level.arrivals != "static", **load)
        benchmark = measuring.run_warm(served, wanted)
    rate = trial.check_bench(benchmark)
    measuring.keep(measuring.make_row(benchmark, served))
    return benchmark, rate


def explain_fault(error: SparkdError, image: str) -> str:
    """Why the tried image does not stay, where its test ended with an error. Pure."""
    reason = sanitize(error.reason)
    if isinstance(error, trial.StillCompilingError):  # those kernels are in the image's caches, for the next time
        return f"{reason}; to try it again, with the kernels it has now: sudo sparkd use --image {quote(image)}"
    return reason


class Comparison(NamedTuple):
    figures: str
    """A line with the new figure and the one before."""
    fault: str
    """Why the new one may not stay; empty unless it is slower."""


def compare(baseline: Benchmark, rate: Spread) -> Comparison:
    """The rate of the tried image beside the one before. Pure."""
    level = baseline.levels[0]
    baseline_rate = level.output_tokens_per_second
    baseline_text = "not known before"
    if baseline_rate:
        baseline_text = f"{describe_rate(baseline_rate)} before, {format_utc(baseline.made)}"
    is_slower = is_faster(baseline_rate, rate)
    fault = f"slower beyond the spread of both, and by {LEAST_DIFFERENCE:.0%}" if is_slower else ""
    return Comparison(f"{counted(level.concurrency, 'request')} at once: {describe_rate(rate)}; {baseline_text}", fault)


class ImageTrial:
    """Switches to a plan for a time, measures it, and lets it stay or goes back."""

    def __init__(self, switch: Switch, config: Settings, host: Host, show: Callable[[str], None]) -> None:
        """`switch`: the one to the tried plan as it is to stay, without an end."""
        self._switch, self._config, self._host, self._show = switch, config, host, show

    def run(self, current: Switch | None) -> str:
        """Try the image. Returns "" once it stays, or the fault for which the node returns to the plan before.

        `current`: the switch in the file. Raises SparkdError, KeyboardInterrupt: the node returns then, too.
        """
        baseline = find_baseline(measuring.read_rows(self._host), read_living_report(self._host.files))
        if baseline is None:
            self._show(f"measuring {label(self._switch.before)} first")
            baseline, _ = bench_under_load()
        chosen = self._switch.to
        until = time_after(trial.trial_limit_seconds(self._config, self._switch.drain_seconds))
        tried = replace(self._switch, to=chosen and replace(chosen, until=until))
        stays = False
        try:
            write_switch(current, tried, self._host)
            self._show(f"trying {label(tried.to)}; Ctrl-C goes back")
            fault = follow(tried, self._host, self._show) or self._find_fault(baseline)
            if not fault:
                self.keep(tried.to)
                stays = True
            return fault
        finally:
            if not stays:
                with hold_signals():  # a second Ctrl-C would leave the trial in force
                    go_back(self._host, lambda choice: (choice.chosen_at, choice.to) == (tried.chosen_at, tried.to))

    def _find_fault(self, baseline: Benchmark) -> str:
        """Why the tried plan may not stay; empty where it serves, passes smoke, and is not slower."""
        if not await_service(self._host, trial.ready_seconds(self._config)):
            return "it does not serve: sparkd status"
        try:
            if faults := trial.smoke_twice():
                return f"smoke: {sanitize('; '.join(faults))}; whether the plan before passes it: sudo sparkd smoke"
            _, rate = bench_under_load(baseline)
        except SparkdError as error:
            tried = self._switch.to
            return explain_fault(error, tried.engine.image if tried is not None else "")
        comparison = compare(baseline, rate)
        self._show(comparison.figures)
        return comparison.fault

    def keep(self, tried: Chosen | None) -> None:
        """Let the tried plan stay. Raises BlockedError where somebody has chosen another one meanwhile."""
        current = read_choice(self._host)
        kept = self._switch.to
        if current is None or kept is None or (current.stage, current.to) != (Stage.IN_FORCE, tried):
            chosen = label(current.chosen if current else None)
            raise BlockedError(f"somebody has chosen {chosen} meanwhile, or it went back", "sparkd status")
        # A plan without an end has nothing below it to go back to.
        write_switch(current, replace(current, to=kept, back=current.back if kept.until else ()), self._host)
