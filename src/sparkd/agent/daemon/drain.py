"""Before a requested stop: a try is not over by it, and requests that run get their time before a switch."""

from __future__ import annotations

import time
from contextlib import suppress

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.switching import SwitchRequested
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import SparkdError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.status.model import Phase
from sparkd.base.vllm.api import Endpoint

COUNTERS_SECONDS = 1.0
LOOK_SECONDS = 0.5
QUIET_SECONDS = 3.0
"""Without a request, until a drain is over: a client that has just read 200 from /readyz may still send one."""


def leave(agent: Agent, running: Running | None, request: StopRequested) -> None:
    """Before a requested stop: a try is not over by it, and requests that run get their time before a switch."""
    if not isinstance(request, SwitchRequested):
        agent.switching.interrupt()
    elif running is not None and agent.reporter.report.phase in (Phase.SERVING, Phase.DEGRADED):
        agent.events.info("switch.drain.started", to=request.to, at_most_seconds=request.drain_seconds)
        agent.phase.enter(Phase.STOPPING, f"draining for {request.to}", draining=True)
        with suppress(StopRequested, SparkdError, OSError):  # a stop, a lost node: no request is left to wait for
            _drain(agent, running, request)
        agent.reporter.update(draining=False, message=str(request))


def _drain(agent: Agent, running: Running, request: SwitchRequested) -> None:
    endpoint, deadline = agent.endpoint(running), time.monotonic() + request.drain_seconds
    quiet_until, ended = time.monotonic() + QUIET_SECONDS, running.rank.ended
    while (left := deadline - time.monotonic()) > 0:
        count = agent.loop.beside(_count_requests(endpoint), left, "a look at the requests")
        if ended.is_set():
            return
        if count != 0:
            quiet_until = time.monotonic() + QUIET_SECONDS
        elif time.monotonic() >= quiet_until:
            return
        runs = "requests run" if count is None else f"{count} request{'s' * (count != 1)} run{'s' * (count == 1)}"
        agent.reporter.update(message=f"draining for {request.to}: {runs}, {left:.0f} s left")
        agent.loop.wait_until(ended.is_set, LOOK_SECONDS)


async def _count_requests(endpoint: Endpoint) -> int | None:
    """None where the engine does not say."""
    try:
        counters = await endpoint.counters(COUNTERS_SECONDS)
    except HttpError:
        return None
    return None if counters is None else round(counters.running + counters.waiting)
