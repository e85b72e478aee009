"""Kernels of the endpoint's requests: counted, and compiled by requests before clients or measurements need them."""

import asyncio
from contextlib import suppress
from functools import partial

from sparkd.base.host import Host, caches
from sparkd.base.lib.http_client import HttpError
from sparkd.base.status.figures import COLD
from sparkd.base.status.model import read_living_report
from sparkd.base.vllm.warm_up import Compiled, Result, add_up, warm_up
from sparkd.base.vllm.warm_up_steps import read_limits
from sparkd.tools.measure.interrupts import report_progress
from sparkd.tools.node.served import Served


async def warm_if_cold(served: Served) -> None:
    """Compile the kernels where the report calls the caches of the head cold: it compiles for all nodes."""
    if (read_living_report(Host().files) or served.report).engine.warmth == COLD:
        report_progress("compile caches are cold: their kernels are compiled first")
        with suppress(HttpError, OSError, ValueError):  # the measurement follows all the same
            report_progress((await warm_caches(served, served.node.settings.readiness.warm_seconds)).shown)


async def warm_caches(served: Served, seconds: float) -> Result:
    """Compile the kernels. Raises HttpError, OSError; ValueError where the engine reports no length of its context."""

    def show(number: int, done: int, steps: int) -> None:
        if not done:
            report_progress(f"pass {number}, of {steps} steps")

    limits = read_limits(served.node.plan.argv, await served.endpoint.context_tokens())
    still_seconds = served.node.settings.supervise.stall_seconds
    count = partial(asyncio.to_thread, count_compiled, served)
    return await warm_up(served.endpoint, limits, count, show, seconds, still_seconds)


def count_compiled(served: Served) -> Compiled:
    """Count the compiled kernels: those that the nodes report, and those in this node's caches. Raises OSError."""
    machine_files, names = Host().files, [cache.name for cache in served.node.plan.caches]
    report = read_living_report(machine_files) or served.report
    reports = (report, *(peer.living for peer in report.peers))
    engines = [node.engine for node in reports if node is not None]
    return add_up(engines, caches.count_kernels(machine_files, served.report.engine.image, names))
