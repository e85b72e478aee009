"""What the commands that measure share: one at a time, their rows in the history, the machine meanwhile."""

from __future__ import annotations

import asyncio
import re
import select
import signal
import sys
import uuid
from contextlib import AbstractContextManager, suppress
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
SOAK_PROGRESS_SECONDS = 60.0
CONCURRENCY, DEPTHS, MOST_TOKENS = (1, 2, 4, 8), (2048, 8192, 32768), 1 << 20
SPARE_TOKENS = 32
"""Of the context: a prompt's length is met to within a few tokens."""
ENDS = (signal.SIGTERM, signal.SIGHUP)


def report_progress(line: str) -> None:
    """A terminal that has gone ends no measurement."""
    with suppress(OSError):
        print(f"sparkd: {line}", file=sys.stderr, flush=True)


def read_rows(host: Host) -> tuple[Row, ...]:
    """For a measurement, which continues without them."""
    try:
        return store.read(host.files)
    except OSError as error:
        report_progress(f"the history can't be read: {error}")
        return ()


def keep(row: Row) -> None:
    """Or say why not: a measurement is not lost by it."""
    try:
        if store.write(Host().files, row):
            report_progress(f"the history was broken, and is {PATH}{store.ASIDE} now")
    except OSError as error:
        report_progress(f"the result is not kept: {error}")


def only_one() -> AbstractContextManager[None]:
    """Two would measure each other's load."""
    return files.locked(Path("/"), "run/sparkd/bench.lock", "`sparkd bench`, `tune-recipe` or `use --image`")


def catch_ends() -> None:
    """Also end of a session or by a service manager as by Ctrl-C: with the results."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        for one in ENDS:  # a session's end sends both
            signal.signal(one, signal.SIG_IGN)
        handler = signal.getsignal(signal.SIGINT)  # asyncio's, while a loop runs; none where a shell's `&` ignores it
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    for one in ENDS:
        if signal.getsignal(one) is signal.SIG_DFL:  # not under nohup
            signal.signal(one, interrupt)


def expected_levels(recipe: Recipe) -> list[int]:
    """Numbers of requests at once of which the recipe has figures, the least one first."""
    known = recipe.expect.get(DECODE)
    figures = [int(one) for one in known if re.fullmatch("[0-9]{1,3}", one)] if isinstance(known, dict) else []
    return sorted(one for one in figures if 1 <= one <= MOST_AT_ONCE)


def start_result(served: Served, wanted: Wanted) -> Result:
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


def choose_lengths(given: Wanted, served: Served) -> Wanted:
    """With the defaults that fit the recipe and the context. Raises UsageError where the given lengths do not."""
    at_once = expected_levels(served.node.recipe) or CONCURRENCY
    context = context_tokens(served.node.plan, Host())
    most = (context or MOST_TOKENS) - given.answer_tokens - SPARE_TOKENS
    longest = max(given.prompt_tokens, *given.depths, 0)
    if longest > most:
        both = f"a prompt of {longest} tokens and an answer of {given.answer_tokens}"
        raise UsageError(
            f"{both} do not fit into {context or MOST_TOKENS} tokens", f"at most {max(most, 0)} for the prompt"
        )
    depths = given.depths or tuple(one for one in DEPTHS if context is None or one <= most)
    return replace(given, concurrency=given.concurrency or tuple(at_once), depths=tuple(filter(None, depths)))


def make_row(found: Result, served: Served) -> Bench:
    figures = msgspec.Raw(msgspec.json.encode(found))
    return Bench(uuid.uuid4().hex, found.made, served.report.launch_id, found.recipe, figures)


def count_compiled(served: Served) -> Compiled:
    """By what the nodes have reported, and by this node's caches. Raises OSError."""
    files, names = Host().files, [one.name for one in served.node.plan.caches]
    report = read_living_report(files) or served.report
    engines = [one.engine for one in (report, *(peer.living for peer in report.peers)) if one is not None]
    return add_up(engines, caches.count_kernels(files, served.report.engine.image, names))


async def warm(served: Served, seconds: float) -> WarmResult:
    """Raises HttpError, OSError; ValueError where the engine does not say how long its context is."""

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


def run(served: Served, wanted: Wanted, result: Result, *, warms: bool = False) -> Result:
    """What there is, also after an interrupt or an error. Raises HttpError, StreamError where there is nothing.

    `warms`: where caches are cold, that comes first.
    """
    found: list[Level | Depth] = []
    interrupted, fault = False, ""

    def kernels() -> int:
        with suppress(OSError):
            return count_compiled(served).kernels
        return 0

    async def collect() -> None:
        if warms:
            await warm_if_cold(served)
        before = kernels()
        async for one in measure(served.endpoint, wanted):
            now = kernels()
            found.append(replace(one, compiled=max(0, now - before)))
            before = now
            report_progress(progress(found[-1]))

    try:
        asyncio.run(collect())
    except KeyboardInterrupt:
        interrupted = True
    except (HttpError, StreamError, ValueError) as error:
        if not found:
            raise
        fault = str(error)
    levels = tuple(one for one in found if isinstance(one, Level))
    lost = next((one.fault for one in levels if one.failed == one.requests), "")
    depths = tuple(one for one in found if isinstance(one, Depth))
    return replace(result, levels=levels, depths=depths, interrupted=interrupted, fault=fault or lost)


def run_soak(served: Served, wanted: Wanted, seconds: int) -> tuple[Soak, bool]:
    """The samples, and whether it was interrupted. Raises HttpError, StreamError without a first answer."""
    host, shown = Host(), [0.0]

    def sampled(sample: Sample) -> None:
        if sample.seconds >= shown[0]:
            shown[0] = sample.seconds + SOAK_PROGRESS_SECONDS
            known = sample.available_bytes.items()
            nodes = ", ".join(f"{sanitize(name)} {'unknown' if free is None else size(free)}" for name, free in known)
            counts = f"{sample.answered} answered, {sample.failed} failed"
            report_progress(f"{sample.seconds:.0f} s: available {nodes}; {counts}")

    end = select.poll()
    end.register(served.rank.pidfd, select.POLLIN)
    work, interrupted = Soak(served.endpoint, wanted, lambda: look(host), sampled, lambda: not end.poll(0)), False
    try:
        asyncio.run(work.run(seconds))
    except KeyboardInterrupt:
        interrupted = True
    return work, interrupted


def look(host: Host) -> Sample | None:
    """This node now, and the others as they last reported; None where this node can't be read."""
    try:
        own, swaps = host.meminfo(), read_swaps(host.files)
    except (OSError, ValueError):
        return None
    report = read_living_report(host.files)
    peers = [(one.report.node, one.living) for one in report.peers if one.report] if report else []
    gpus = [one.gpu for one in (report, *(living for _, living in peers)) if one and one.gpu]
    return Sample(
        seconds=0.0,
        available_bytes={
            report.node if report else host.name(): own.available_bytes,
            **{name: one.memory.available_bytes if one and one.memory else None for name, one in peers},
        },
        cached_bytes=own.cached_bytes,
        swap_used_bytes=sum(one.used_bytes for one in swaps),
        gpu_celsius=max((one.temperature_celsius for one in gpus if one.temperature_celsius is not None), default=None),
        gpu_mhz=min((one.clock_mhz for one in gpus if one.clock_mhz is not None), default=None),
    )
