"""Kernels are compiled before READY: requests of all sizes where the caches of any node are cold."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.rank import Running
from sparkd.base.host import caches
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import HttpError
from sparkd.base.state.warmed import FILE, Entry, Warmed
from sparkd.base.status.figures import EngineReport
from sparkd.base.vllm.warm_up import MOST_AT_ONCE, Compiled, Result, add_up, read_limits, warm_up

COUNT_SECONDS = 5.0
"""To count the files of some ten folders, while nothing else watches the engine."""
SHOW_SECONDS = 0.5
COLD, WARM = "cold", "warm"


def note_warmth(agent: Agent) -> None:
    """Whether this node's caches are cold, for the head, which warms for all."""
    if agent.settings.readiness.warm != "never" and agent.plan.container.gpus == "all":
        try:
            known = agent.store.read(FILE.load) or Warmed()
            _report(agent, WARM if _entry(agent) in known.plans else COLD)
        except OSError as error:  # a disk that fails or hangs ends no load
            agent.store.report_unread(str(error))


def follow_warmth(agent: Agent, head: EngineReport) -> None:
    """On a worker: what the head has warmed is warm here too."""
    if head.warmth == WARM and agent.reporter.report.engine.warmth == COLD:
        _keep(agent)


def make_warm(agent: Agent, running: Running, show: Callable[[str], object]) -> None:
    """On the head, after the first completion. It raises what ends the rank, and nothing else."""
    wanted = agent.settings.readiness
    own = agent.reporter.report.engine.warmth
    cold = [one.name for one in agent.monitor.statuses() if one.report and one.report.engine.warmth == COLD]
    cold = [agent.reporter.report.node] * (own == COLD) + cold
    if wanted.warm == "never" or not (cold or wanted.warm == "always"):
        return
    began = running.seconds
    agent.events.info(
        "engine.kernels.warming", cold=", ".join(cold), hint="nothing is to be done: it is ready after it"
    )
    shown = "its kernels to be compiled"

    def note(number: int, done: int, steps: int) -> None:
        nonlocal shown
        shown = f"its kernels to be compiled: pass {number}, {done} of {steps} steps"

    warming = agent.loop.start(_warm_up(agent, running, note, wanted.warm_seconds))
    while not warming.done():
        show(shown)
        agent.loop.wait(SHOW_SECONDS)
    try:
        result = warming.result()
    except (OSError, HttpError, ValueError) as error:
        agent.events.warning("engine.kernels.cold", reason=str(error), hint="sudo sparkd warm")
        return
    seconds = round(running.seconds - began)
    if result.whole:
        _keep(agent)
        agent.events.info("engine.kernels.warm", seconds=seconds, reason=result.shown)
    else:
        last = running.log.progress.kernel
        reason = result.shown + (f"; the last one is {last}" if last else "")
        hint = "it is ready all the same, and requests may wait for a kernel; once it serves: sudo sparkd warm"
        agent.events.warning("engine.kernels.cold", seconds=seconds, reason=reason, hint=hint)


async def _warm_up(agent: Agent, running: Running, note: Callable[[int, int, int], object], seconds: float) -> Result:
    endpoint = running.endpoint(agent.plan, agent.api_key, agent.events, MOST_AT_ONCE)

    async def look() -> Compiled:
        files = await run_in_thread("kernels", lambda: _count(agent))
        peers = [one.report.engine for one in agent.monitor.statuses() if one.report]
        own = EngineReport(compilers=running.compiler_count, kernels_compiled=running.log.progress.compiled)
        return add_up([own, *peers], files)

    limits = read_limits(agent.plan.argv, await endpoint.context_tokens())
    return await warm_up(endpoint, limits, look, note, seconds)


def _count(agent: Agent) -> int:
    image, names = agent.reporter.report.engine.image, [one.name for one in agent.plan.caches]
    return caches.count_kernels(agent.host.files, image, names)


def _entry(agent: Agent) -> Entry:
    """Raises OSError."""
    kernels = agent.loop.beside(lambda: _count(agent), COUNT_SECONDS, "counting kernels in the caches")
    return Entry(agent.agreed.agreement.digest, kernels)


def _keep(agent: Agent) -> None:
    _report(agent, WARM)
    try:
        known = agent.store.read(FILE.load) or Warmed()
        agent.store.write(FILE, known.add(_entry(agent)))
    except OSError as error:
        agent.store.report_unread(str(error))


def _report(agent: Agent, warmth: str) -> None:
    agent.reporter.update(engine=replace(agent.reporter.report.engine, warmth=warmth))
