"""Bench and soak of this node's endpoint, with the lock that allows one measurement at a time, and their history."""

import re
import select
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sparkd import __version__
from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.text import counted, sanitize, size
from sparkd.base.lib.times import utc_now
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.history import PATH, Bench, Row
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.measure.bench import Benchmark, Wanted, measure
from sparkd.tools.measure.figures import DECODE, Depth, LevelFigures, format_latency
from sparkd.tools.measure.interrupts import catch_ends, report_progress, run_interruptible
from sparkd.tools.measure.soak import Sample, Soak, read_sample
from sparkd.tools.measure.warming import count_compiled, warm_if_cold
from sparkd.tools.node.command_lock import hold_command_lock
from sparkd.tools.node.endpoint import context_tokens
from sparkd.tools.node.served import Served

MOST_AT_ONCE = 256
CONCURRENCY, DEPTHS, MOST_TOKENS = (1, 2, 4, 8), (2048, 8192, 32768), 1 << 20
SPARE_TOKENS = 32
"""Tokens of the context that stay free: a prompt's length is met to within a few tokens."""


def read_rows(host: Host) -> tuple[Row, ...]:
    """Read the history for a measurement, which continues without it."""
    try:
        return history.read(host.files)
    except OSError as error:
        report_progress(f"the history can't be read: {error}")
        return ()


def keep(row: Row) -> None:
    """Write the row to the history, or report why not: a command prints its result all the same."""
    try:
        if history.write(Host().files, row):
            report_progress(f"the history was broken, and is {PATH}{history.ASIDE} now")
    except OSError as error:
        report_progress(f"the result is not kept: {error}")


@contextmanager
def only_one() -> Iterator[None]:
    """Lock out other measurements, which would measure each other's load, and `catch_ends`. Raises UsageError."""
    with hold_command_lock(Path("/"), "run/sparkd/bench.lock", "`sparkd bench`, `tune-recipe` or `use --image`"):
        catch_ends()
        yield


def expected_levels(recipe: Recipe) -> list[int]:
    """Numbers of requests at once for which the recipe expects figures, the least one first."""
    figures = recipe.expect.get(DECODE)
    levels = [int(key) for key in figures if re.fullmatch("[0-9]{1,3}", key)] if isinstance(figures, dict) else []
    return sorted(level for level in levels if 1 <= level <= MOST_AT_ONCE)


def choose_lengths(options: Wanted, served: Served) -> Wanted:
    """The options, with defaults that fit recipe and context. Raises UsageError where an option does not fit."""
    at_once = expected_levels(served.node.recipe) or CONCURRENCY
    context_length = context_tokens(served.node.plan, Host())
    limit = (context_length or MOST_TOKENS) - options.answer_tokens - SPARE_TOKENS
    longest = max(options.prompt_tokens, *options.depths, 0)
    if longest > limit:
        request = f"a prompt of {longest} tokens and an answer of {options.answer_tokens}"
        hint = f"at most {max(limit, 0)} for the prompt"
        raise UsageError(f"{request} do not fit into {context_length or MOST_TOKENS} tokens", hint)
    depths = options.depths or tuple(length for length in DEPTHS if context_length is None or length <= limit)
    return replace(options, concurrency=options.concurrency or tuple(at_once), depths=tuple(filter(None, depths)))


def make_row(benchmark: Benchmark, served: Served) -> Bench:
    figures = msgspec.Raw(msgspec.json.encode(benchmark))
    return Bench(uuid.uuid4().hex, benchmark.made, served.report.launch_id, benchmark.recipe, figures)


def run(served: Served, wanted: Wanted, *, warms: bool = False) -> Benchmark:
    """Measure, and return the figures, also those that an interrupt or an error leaves.

    `warms`: cold caches are warmed first. Raises HttpError, StreamError, ValueError without any figure.
    """
    started_at, figures, interrupted, fault = utc_now(), list[LevelFigures | Depth](), False, ""

    def count_kernels() -> int:
        with suppress(OSError):
            return count_compiled(served).kernels
        return 0

    async def collect() -> None:
        try:
            if warms:
                await warm_if_cold(served)
            kernels_before = count_kernels()
            async for figure in measure(served.endpoint, wanted):
                kernels_now = count_kernels()
                figures.append(replace(figure, compiled=max(0, kernels_now - kernels_before)))
                kernels_before = kernels_now
                report_progress(_describe(figures[-1]))
        finally:
            await served.endpoint.close()  # `run_warm` measures again, in another loop

    try:
        interrupted = run_interruptible(collect())
    except (HttpError, StreamError, ValueError) as error:
        if not figures:
            raise
        fault = str(error)
    levels = tuple(figure for figure in figures if isinstance(figure, LevelFigures))
    failed_level_fault = next((level.fault for level in levels if level.failed == level.requests), "")
    depths = tuple(figure for figure in figures if isinstance(figure, Depth))
    return Benchmark(
        made=started_at,
        node=served.report.node,
        recipe=served.node.plan.recipe,
        model=served.node.plan.served_name,
        plan=served.report.plan_digest,
        version=__version__,
        prompt_tokens=wanted.prompt_tokens,
        answer_tokens=wanted.answer_tokens,
        levels=levels,
        depths=depths,
        interrupted=interrupted,
        fault=fault or failed_level_fault,
    )


def run_warm(served: Served, wanted: Wanted) -> Benchmark:
    """`run` with warm caches; once more, with other prompts, where kernels were compiled meanwhile, which slows it."""
    for _ in range(2):
        benchmark = run(served, replace(wanted, seed=time.time_ns()), warms=True)
        if benchmark.interrupted or not any(level.compiled for level in benchmark.levels):
            break
    return benchmark


def _describe(part: LevelFigures | Depth) -> str:
    if isinstance(part, Depth):
        return f"prompt of {part.prompt_tokens:,} tokens: {format_latency(part.first_token_seconds)} to the first token"
    rate = part.output_tokens_per_second
    outcome = f"{rate.median:.1f} tokens/s" if rate else sanitize(part.fault)
    return f"{counted(part.concurrency, 'request')} at once: {outcome}"


def run_soak(served: Served, wanted: Wanted, seconds: int) -> tuple[Soak, bool]:
    """Run a soak; return it, and whether it was interrupted.

    Raises HttpError, StreamError where not even the first request is answered.
    """
    host, due_seconds = Host(), 0.0

    def report_sample(sample: Sample) -> None:
        nonlocal due_seconds
        if sample.seconds >= due_seconds:
            due_seconds = sample.seconds + 60
            nodes = ", ".join(
                f"{sanitize(name)} {'unknown' if free_bytes is None else size(free_bytes)}"
                for name, free_bytes in sample.available_bytes.items()
            )
            counts = f"{sample.answered} answered, {sample.failed} failed"
            report_progress(f"{sample.seconds:.0f} s: available {nodes}; {counts}")

    rank_end = select.poll()
    rank_end.register(served.rank.pidfd, select.POLLIN)
    soak = Soak(served.endpoint, wanted, lambda: read_sample(host), report_sample, lambda: not rank_end.poll(0))
    return soak, run_interruptible(soak.run(seconds))
