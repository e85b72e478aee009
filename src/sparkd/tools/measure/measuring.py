"""What the commands that measure share: one at a time, their rows in the history, the machine meanwhile."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import sys
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace

from sparkd import __version__
from sparkd.agent.actions import files
from sparkd.agent.actions import history as store
from sparkd.base.host import Host, caches
from sparkd.base.host.meminfo import read_swaps
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.text import sanitize, size
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.history import PATH, Bench, Row
from sparkd.base.status.model import read_living_report, utc_now
from sparkd.base.vllm.streaming import StreamError
from sparkd.base.vllm.warm_up import Compiled, add_up, read_limits, warm_up
from sparkd.base.vllm.warm_up import Result as WarmResult
from sparkd.tools.measure.bench import Result, Wanted, measure
from sparkd.tools.measure.figures import DECODE, Depth, Level, progress
from sparkd.tools.measure.soak import Sample, Soak
from sparkd.tools.node.endpoint import context_tokens
from sparkd.tools.node.served import Served

MOST_AT_ONCE = 256
CONCURRENCY, DEPTHS, MOST_TOKENS = (1, 2, 4, 8), (2048, 8192, 32768), 1 << 20
SPARE_TOKENS = 32
"""Tokens of the context that stay free: a prompt's length is met to within a few tokens."""
ENDS = (signal.SIGTERM, signal.SIGHUP)


def report_progress(line: str) -> None:
    """Print a line to stderr. A terminal that has gone ends no measurement."""
    with suppress(OSError):
        print(f"sparkd: {line}", file=sys.stderr, flush=True)


def read_rows(host: Host) -> tuple[Row, ...]:
    """Read the history for a measurement, which continues without it."""
    try:
        return store.read(host.files)
    except OSError as error:
        report_progress(f"the history can't be read: {error}")
        return ()


def keep(row: Row) -> None:
    """Write the row, or report why not: a measurement is not lost by it."""
    try:
        if store.write(Host().files, row):
            report_progress(f"the history was broken, and is {PATH}{store.ASIDE} now")
    except OSError as error:
        report_progress(f"the result is not kept: {error}")


@contextmanager
def only_one() -> Iterator[None]:
    """A lock, since two would measure each other's load. As `catch_ends` from then on."""
    with files.locked(Path("/"), "run/sparkd/bench.lock", "`sparkd bench`, `tune-recipe` or `use --image`"):
        catch_ends()
        yield


def catch_ends() -> None:
    """Make the end of a session or by a service manager as that by Ctrl-C, which keeps the results."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        for number in ENDS:  # a session's end sends both
            signal.signal(number, signal.SIG_IGN)
        handler = signal.getsignal(signal.SIGINT)  # asyncio's, while a loop runs; none where a shell's `&` ignores it
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    for end in ENDS:
        if signal.getsignal(end) is signal.SIG_DFL:  # not under nohup
            signal.signal(end, interrupt)


def run_interruptible(work: Coroutine[None, None, None]) -> bool:
    """Run it in a loop of its own. Return whether SIGINT ended it; then later ones are ignored.

    `timeout` sends two, as a person may: the second would find the interpreter's own handler, and end the command
    before its results are printed.
    """

    async def cancel_once() -> None:
        handler = signal.getsignal(signal.SIGINT)  # asyncio's

        def interrupt(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if callable(handler):
                handler(number, frame)

        if callable(handler):  # a shell's `&` ignores it
            signal.signal(signal.SIGINT, interrupt)
        try:
            await work
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, handler)

    try:
        asyncio.run(cancel_once())
    except KeyboardInterrupt:
        return True
    return False


def expected_levels(recipe: Recipe) -> list[int]:
    """Numbers of requests at once of which the recipe has figures, the least one first."""
    known = recipe.expect.get(DECODE)
    levels = [int(key) for key in known if re.fullmatch("[0-9]{1,3}", key)] if isinstance(known, dict) else []
    return sorted(level for level in levels if 1 <= level <= MOST_AT_ONCE)


def _start_benchmark(served: Served, wanted: Wanted) -> Result:
    return Result(
        made=utc_now(),
        node=served.report.node,
        recipe=served.node.plan.recipe,
        model=served.node.plan.served_name,
        plan=served.report.plan_digest,
        version=__version__,
        prompt_tokens=wanted.prompt_tokens,
        answer_tokens=wanted.answer_tokens,
    )


def choose_lengths(options: Wanted, served: Served) -> Wanted:
    """Put in the defaults that fit the recipe and the context. Raises UsageError where the given lengths do not."""
    at_once = expected_levels(served.node.recipe) or CONCURRENCY
    context = context_tokens(served.node.plan, Host())
    most = (context or MOST_TOKENS) - options.answer_tokens - SPARE_TOKENS
    longest = max(options.prompt_tokens, *options.depths, 0)
    if longest > most:
        both = f"a prompt of {longest} tokens and an answer of {options.answer_tokens}"
        raise UsageError(
            f"{both} do not fit into {context or MOST_TOKENS} tokens", f"at most {max(most, 0)} for the prompt"
        )
    depths = options.depths or tuple(length for length in DEPTHS if context is None or length <= most)
    return replace(options, concurrency=options.concurrency or tuple(at_once), depths=tuple(filter(None, depths)))


def make_row(benchmark: Result, served: Served) -> Bench:
    figures = msgspec.Raw(msgspec.json.encode(benchmark))
    return Bench(uuid.uuid4().hex, benchmark.made, served.report.launch_id, benchmark.recipe, figures)


def count_compiled(served: Served) -> Compiled:
    """Count the kernels that the nodes have reported, and those in this node's caches. Raises OSError."""
    machine_files, names = Host().files, [cache.name for cache in served.node.plan.caches]
    report = read_living_report(machine_files) or served.report
    reports = (report, *(peer.living for peer in report.peers))
    engines = [node.engine for node in reports if node is not None]
    counts = [(engine.kernels_compiled, engine.compilers, engine.works) for engine in engines]
    return add_up(counts, caches.count_kernels(machine_files, served.report.engine.image, names))


async def warm(served: Served, seconds: float) -> WarmResult:
    """Compile the kernels. Raises HttpError, OSError; ValueError where the engine reports no length of its context."""

    async def look() -> Compiled:
        return await asyncio.to_thread(count_compiled, served)

    def show(number: int, done: int, steps: int) -> None:
        if not done:
            report_progress(f"pass {number}, of {steps} steps")

    limits = read_limits(served.node.plan.argv, await served.endpoint.context_tokens())
    still_seconds = served.node.settings.supervise.stall_seconds
    return await warm_up(served.endpoint, limits, look, show, seconds, still_seconds)


async def warm_if_cold(served: Served) -> None:
    if (read_living_report(Host().files) or served.report).engine.warmth == "cold":  # the head's, which warms for all
        report_progress("compile caches are cold: their kernels are compiled first")
        with suppress(HttpError, OSError, ValueError):  # it is measured all the same, and called cold
            report_progress((await warm(served, served.node.settings.readiness.warm_seconds)).shown)


def run(served: Served, wanted: Wanted, *, warms: bool = False) -> Result:
    """Measure, and return what there is, also after an interrupt or an error.

    `warms`: cold caches are warmed first. Raises HttpError, StreamError where there is nothing.
    """
    benchmark, figures = _start_benchmark(served, wanted), list[Level | Depth]()
    interrupted, fault = False, ""

    def kernels() -> int:
        with suppress(OSError):
            return count_compiled(served).kernels
        return 0

    async def collect() -> None:
        if warms:
            await warm_if_cold(served)
        before = kernels()
        async for part in measure(served.endpoint, wanted):
            now = kernels()
            figures.append(replace(part, compiled=max(0, now - before)))
            before = now
            report_progress(progress(figures[-1]))

    try:
        interrupted = run_interruptible(collect())
    except (HttpError, StreamError, ValueError) as error:
        if not figures:
            raise
        fault = str(error)
    levels = tuple(figure for figure in figures if isinstance(figure, Level))
    lost = next((level.fault for level in levels if level.failed == level.requests), "")
    depths = tuple(figure for figure in figures if isinstance(figure, Depth))
    return replace(benchmark, levels=levels, depths=depths, interrupted=interrupted, fault=fault or lost)


def run_soak(served: Served, wanted: Wanted, seconds: int) -> tuple[Soak, bool]:
    """The samples, and whether it was interrupted. Raises HttpError, StreamError without a first answer."""
    host, shown = Host(), [0.0]

    def sampled(sample: Sample) -> None:
        if sample.seconds >= shown[0]:
            shown[0] = sample.seconds + 60
            known = sample.available_bytes.items()
            nodes = ", ".join(f"{sanitize(name)} {'unknown' if free is None else size(free)}" for name, free in known)
            counts = f"{sample.answered} answered, {sample.failed} failed"
            report_progress(f"{sample.seconds:.0f} s: available {nodes}; {counts}")

    end = select.poll()
    end.register(served.rank.pidfd, select.POLLIN)
    work = Soak(served.endpoint, wanted, lambda: look(host), sampled, lambda: not end.poll(0))
    return work, run_interruptible(work.run(seconds))


def look(host: Host) -> Sample | None:
    """This node now, and the others as they last reported; None where this node can't be read."""
    try:
        own, swaps = host.meminfo(), read_swaps(host.files)
    except (OSError, ValueError):
        return None
    report = read_living_report(host.files)
    peers = [(peer.report.node, peer.living) for peer in report.peers if peer.report] if report else []
    gpus = [node.gpu for node in (report, *(living for _, living in peers)) if node and node.gpu]
    return Sample(
        seconds=0.0,
        available_bytes={
            report.node if report else host.name(): own.available_bytes,
            **{name: node.memory.available_bytes if node and node.memory else None for name, node in peers},
        },
        cached_bytes=own.cached_bytes,
        swap_used_bytes=sum(swap.used_bytes for swap in swaps),
        gpu_celsius=max((gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None), default=None),
        gpu_mhz=min((gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None), default=None),
    )
