"""What every trial of a plan measures: smoke and a bench, how long they may take, and what a bench can be used for."""

import asyncio
from collections.abc import Callable

from sparkd.base.config import Settings
from sparkd.base.lib.errors import BlockedError, EngineEndedError, NotReadyError
from sparkd.base.lib.text import sanitize
from sparkd.base.state.switch import AWAITED_SECONDS
from sparkd.tools.measure.bench import Benchmark, Wanted
from sparkd.tools.measure.figures import Spread
from sparkd.tools.node.served import CONNECTIONS, open_endpoint, run_smoke

DEFAULT_CONCURRENCY = 4
"""Requests at once where a recipe expects no figures."""
RUNS = 5
"""Batches of requests, one after the other."""
MEASURE_SECONDS = 3600
"""Time of smoke and bench, each of which may be done twice."""


def trial_limit_seconds(settings: Settings, drain_seconds: int) -> int:
    """Seconds until a trial ends by itself. `drain_seconds`: the time that running requests have left."""
    return ready_seconds(settings) + AWAITED_SECONDS + drain_seconds + MEASURE_SECONDS


def ready_seconds(settings: Settings) -> int:
    """Seconds to wait until a plan serves: its load, and the compilation of its kernels."""
    return settings.readiness.timeout_seconds + settings.readiness.warm_seconds


def smoke_once() -> list[str]:
    """Faults of the model's answers. Raises as `open_endpoint`."""
    with open_endpoint(CONNECTIONS) as served:
        return [fault for round_ in asyncio.run(run_smoke(served)) for fault in round_.faults]


def smoke_twice(smoke: Callable[[], list[str]] = smoke_once) -> list[str]:
    """Faults of the second try, where the first has some, too: a healthy model has one now and then.

    Raises as `smoke`; EngineEndedError where the engine ended after a first try with faults, which it names.
    """
    if not (faults := smoke()):
        return []
    try:
        return smoke()
    except BlockedError as error:
        raise EngineEndedError(f"{'; '.join(faults)}; {error.reason}", error.hint) from None


def short_bench(at_once: int) -> Wanted:
    """A short bench of one level."""
    return Wanted((at_once,), (), prompt_tokens=64, answer_tokens=128, runs=RUNS, staggered=False, seed=0)


class StillCompilingError(NotReadyError):
    """The engine compiled kernels during each try of a bench, which makes it slow."""


def check_bench(benchmark: Benchmark) -> Spread:
    """The rate of a bench of one level, where it can be compared with another. Pure.

    Raises NotReadyError where requests failed, StillCompilingError, KeyboardInterrupt where the bench was interrupted.
    """
    if benchmark.interrupted:
        raise KeyboardInterrupt
    level = benchmark.levels[0] if benchmark.levels else None
    fault = benchmark.fault or (level.fault if level else "no answer")
    if fault or level is None or level.output_tokens_per_second is None:
        raise NotReadyError(f"bench: {sanitize(fault or 'no figure')}", "sparkd status")
    if level.compiled:
        reason = f"bench: {level.compiled} kernel(s) were compiled meanwhile, so it has no speed to compare"
        raise StillCompilingError(reason, "sudo sparkd warm; then the same command again")
    return level.output_tokens_per_second
