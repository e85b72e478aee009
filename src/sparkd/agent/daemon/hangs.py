"""Hangs of this node's rank: who watches for them, what the other ranks report of it, and the stacks that are kept."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.gpu_throttle import GpuThrottleMonitor
from sparkd.agent.engine.hang import IDLE_SECONDS, HangLook, HangWatch, look_at_rank
from sparkd.agent.engine.rank import Running
from sparkd.agent.engine.stacks import Stacks, read_stacks
from sparkd.base.lib.errors import Cause, ExitCode, SparkdError
from sparkd.base.status.model import NodeReport, Phase

STACKS_SECONDS = 10.0
"""The end of a rank waits so long at the most for its stacks."""
OTHERS_SECONDS = 1.5
"""The same limit where another rank ended first: none may outlive another by two seconds."""


def watch_hang(agent: Agent, running: Running, gpu: GpuThrottleMonitor | None) -> None:
    """From now on a rank that is stopped or frozen ends the run."""
    host, rank = agent.host, running.rank

    def look(at: float) -> HangLook:
        processes = host.container_processes(rank.pid, rank.container_id)
        return look_at_rank(host, processes, rank.pid, at, waits=agent.reporter.report.phase is Phase.DEGRADED)

    name = f"rank {agent.context.rank} on {agent.reporter.report.node}"
    gpu_idle = gpu.idle if gpu is not None else lambda: True
    running.watch_hang(HangWatch(name, look, agent.loop.start, gpu_idle, lambda: running.compilers.count > 0))


def group_is_idle(agent: Agent, running: Running) -> bool:
    """Whether no rank does anything: the head's as it is watched, the others as they report, while requests wait."""
    idle = _is_idle(running)  # first, and always: the watch takes its sample in this call
    reports = [peer.report for peer in agent.monitor.statuses()]
    return idle and all(report is not None and report.engine.idle_seconds is not None for report in reports)


def report_idle(agent: Agent, running: Running, head: NodeReport) -> None:
    """Report whether this worker is idle. The figure is fixed, so that the report changes only where that does."""
    idle = head.phase is Phase.DEGRADED and _is_idle(running)
    agent.reporter.update_engine(idle_seconds=round(IDLE_SECONDS) if idle else None)


def _is_idle(running: Running) -> bool:
    """Whether the watch takes this rank for idle. Never while docker is away, nor for IDLE_SECONDS after: nobody reads
    the log then, and a rank that writes to it waits.
    """
    away_at, idle = running.log.broken_off_at, running.hang is not None and running.hang.is_idle()
    return idle and (away_at is None or time.monotonic() - away_at >= IDLE_SECONDS)


def may_be_hang(error: SparkdError, failed_in: Phase) -> bool:
    """Whether the rank hangs, or another one's hang may be behind the error: then each node keeps its stacks."""
    another_may_hang = failed_in is Phase.DEGRADED and error.cause is Cause.PEER_FAILED
    return error.code is ExitCode.STALLED or error.cause is Cause.LOAD_STALLED or another_may_hang


def read_rank_stacks(agent: Agent, running: Running | None, error: SparkdError, failed_in: Phase) -> Stacks | None:
    """Read the stacks before the rank is ended; None where it does not hang, and where that takes too long."""
    if running is None or running.rank.ended.is_set() or not may_be_hang(error, failed_in):
        return None
    host, rank = agent.host, running.rank

    def read() -> Stacks:
        return read_stacks(host.files, host.container_processes(rank.pid, rank.container_id))

    try:
        seconds = OTHERS_SECONDS if error.cause is Cause.PEER_FAILED else STACKS_SECONDS
        return agent.loop.beside(read, seconds, "reading the rank's stacks", shielded=True)
    except (OSError, ValueError) as unread:  # TimeoutError among them
        hint = "nothing is to be done: the rank is ended without them"
        agent.events.warning("engine.stacks.unread", reason=str(unread), hint=hint)
        return None


def keep_stacks(agent: Agent, stacks: Stacks | None, error: SparkdError) -> None:
    """Write the stacks to a file for root, once the rank is gone. A full disk ends nothing."""
    if stacks is not None:
        at = datetime.now(UTC)
        text = f"{at.isoformat(timespec='seconds')} rank {agent.context.rank}: {error.reason}\n\n{stacks.text}"
        with suppress(OSError):
            path = agent.actions.write_stacks(f"{at:%Y%m%dT%H%M%SZ}.txt", partial(agent.redact, text))
            agent.events.info("engine.stacks.kept", path=path, count=stacks.count, hint=f"sudo less {path}")
