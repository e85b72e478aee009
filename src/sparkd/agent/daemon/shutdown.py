"""Ends a run: reports that, stops the rank, finds the cause, and logs what differs from the last good start."""

import time
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from sparkd.agent.daemon.agreed import log_differences
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.ended_engine import LOST_GRACE_SECONDS
from sparkd.agent.daemon.evidence import EvidenceSearch
from sparkd.agent.daemon.hangs import keep_stacks, read_rank_stacks
from sparkd.agent.daemon.judgement import count_end, judge_end
from sparkd.agent.daemon.readahead import RESTORE_SECONDS, begin_restore
from sparkd.agent.daemon.reboot import reboot_if_due
from sparkd.agent.daemon.switching import SwitchRequested
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.endings import Stage, StopRequested
from sparkd.base.lib.errors import NOT_RESTARTED, Cause, ExitCode, SparkdError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.main_loop import never
from sparkd.base.lib.times import utc_now
from sparkd.base.state.launch_history import STOPPED, End
from sparkd.base.status.model import Phase
from sparkd.base.status.phases import find_loss
from sparkd.base.vllm.api import Endpoint

STOPPED_LOG_SECONDS = 0.3
"""Limit for the last lines of a rank that is ended: a stop has to end within its grace period, whatever docker does."""
FAILED_GRACE_SECONDS = 5.0
"""Grace period of an engine that is given up: no request can finish any more, and preflight clears what it leaves."""
RELEASE_SECONDS = 3.0
"""How long a stopped worker waits for its head to leave service, before it ends its rank."""
GOODBYE_SECONDS = 0.3
"""Time for the other nodes to read that this one leaves, before it refuses connections."""
QUIET_SECONDS = 3.0
"""Time without a request that ends a drain: a client that has just read 200 from /readyz may still send one."""


def shutdown_on_request(agent: Agent, running: Running | None, request: StopRequested) -> None:
    """End the rank within its grace period, and count no failure."""
    agent.loop.endings.enter(Stage.CLOSING)
    try:
        _prepare_stop(agent, running, request)
    except BaseException:  # a bug, or an error of a task: no rank is left behind
        agent.loop.endings.enter(Stage.END)
        end_rank(agent, running)
        raise
    agent.loop.endings.enter(Stage.END)
    is_switch = isinstance(request, SwitchRequested)
    reason, cause = (str(request), Cause.SWITCH) if is_switch else (STOPPED, Cause.STOP_REQUESTED)
    agent.monitor.untrack_all()
    agent.loop.report_stopping()
    agent.phase.enter(Phase.STOPPING, reason)
    grace_seconds: float = agent.settings.engine.stop_grace_seconds
    if running is not None and not agent.context.is_head:
        agent.loop.wait_until(partial(_has_head_left, agent), RELEASE_SECONDS)
        if _has_head_left(agent):
            grace_seconds = min(grace_seconds, LOST_GRACE_SECONDS)  # no request is left to finish
    end_rank(agent, running, grace_seconds)
    end = End(reason, int(ExitCode.GOOD), at=utc_now(), cause=cause)
    agent.store.record(lambda launches: launches.record_end(agent.boot_id, end))
    agent.launch_row.end(running, end)
    agent.phase.enter(Phase.STOPPED)
    if agent.context.peers:
        agent.loop.wait_until(never, GOODBYE_SECONDS)


def shutdown_on_error(agent: Agent, running: Running | None, error: SparkdError) -> ExitCode:
    """Report that the run ends, stop the rank, find out why, and record it for the next run."""
    agent.loop.endings.enter(Stage.END)
    agent.loop.report_stopping()
    failed_in = agent.phase.failed_in or agent.reporter.report.phase
    agent.monitor.untrack_all()
    # Without a cause yet: messages to people, and a head that loses this rank, wait for the cause.
    agent.phase.enter(Phase.BLOCKED if error.code is ExitCode.BLOCKED else Phase.FAILED, str(error), hint=error.hint)
    reported_at = time.monotonic()
    stacks = read_rank_stacks(agent, running, error, failed_in)
    search = EvidenceSearch(agent, running, error)
    is_engine_lost = agent.context.peers or error.code is ExitCode.STALLED
    grace_seconds = LOST_GRACE_SECONDS if is_engine_lost else FAILED_GRACE_SECONDS
    kill_rank(agent, running, min(grace_seconds, agent.settings.engine.stop_grace_seconds))
    evidence = replace(search.gather(), frame=stacks.frame if stacks is not None else "")
    judged_end = judge_end(error, evidence, failed_in, utc_now())
    end = agent.switching.end_try(judged_end)
    fields = {"cause": str(end.cause), "action": end.action, "phase": end.phase}
    agent.events.error("agent.run.failed", code=end.code, **fields, reason=end.reason, hint=end.hint)
    message = f"{end.reason} ({end.hint})" if end.hint else end.reason
    peers = agent.monitor.statuses()
    agent.reporter.update(cause=str(end.cause), action=end.action, message=message, hint=end.hint, peers=peers)
    agent.reporter.publish()
    leaves_at = max(reported_at + agent.pace.last_report_seconds, time.monotonic() + GOODBYE_SECONDS)
    clear_rank(agent, running)
    keep_stacks(agent, stacks, error)
    end = replace(end, reason=agent.redact(end.reason), hint=agent.redact(end.hint))
    agent.store.record(lambda launches: count_end(launches, end, agent.plan.backoff_key, agent.boot_id))
    agent.launch_row.end(running, end)
    if not agent.proving.proven and error.code is not ExitCode.PEER_LOST:
        log_differences(agent)  # last, so that it stands below the rank's own lines
    if agent.context.peers:
        agent.loop.wait_until(never, leaves_at - time.monotonic())
    reboot_if_due(agent, error, end)
    # The plan before is to be launched, whatever ended the new one, so systemd must restart the unit.
    is_switch_back = end.cause == Cause.SWITCH_FAILED
    return ExitCode.NOT_READY if is_switch_back and error.code in NOT_RESTARTED else error.code


def _has_head_left(agent: Agent) -> bool:
    """Whether the head is out of service or unreachable. One that drains still answers requests."""
    report = agent.monitor.statuses()[0].living
    return report is None or find_loss(report) is not None


def end_rank(agent: Agent, running: Running | None, grace_seconds: float = LOST_GRACE_SECONDS) -> None:
    """Stop the rank, and remove what is left of it."""
    kill_rank(agent, running, grace_seconds)
    clear_rank(agent, running)


def kill_rank(agent: Agent, running: Running | None, grace_seconds: float) -> None:
    """End the rank's processes, and wait for the last lines of its log. Restores the readahead too."""
    restore = begin_restore(agent)
    if running is not None:
        if not running.kill(grace_seconds):
            agent.events.error(
                "engine.stop.failed", container=running.rank.container_id[:12], hint="sudo systemctl reboot"
            )
        running.finish_log(STOPPED_LOG_SECONDS)
    agent.loop.wait_until(restore.done, RESTORE_SECONDS, shielded=True)


def clear_rank(agent: Agent, running: Running | None) -> None:
    """Remove the rank's container and shared memory. docker may take seconds."""
    if running is None:
        return
    if running.guard is not None:
        running.guard.close()
    is_removed = False
    with suppress(SparkdError, OSError):
        is_removed = agent.actions.remove(running.rank)
    # A rank that survived still uses its segments.
    for segment in running.segments if running.rank.ended.is_set() else ():
        with suppress(OSError):
            agent.actions.apply(segment)
    with suppress(OSError):
        if is_removed and running.rank.ended.is_set():  # a record that stays is replaced by the next one
            agent.actions.forget_rank()
    running.rank.close(agent.loop)


def _prepare_stop(agent: Agent, running: Running | None, request: StopRequested) -> None:
    """Keep a plan on trial, which is not judged by a stop; or before a switch, give running requests time to finish."""
    if not isinstance(request, SwitchRequested):
        agent.switching.interrupt()
    elif running is not None and agent.reporter.report.phase in (Phase.SERVING, Phase.DEGRADED):
        agent.events.info("switch.drain.started", to=request.to, at_most_seconds=request.drain_seconds)
        agent.phase.enter(Phase.STOPPING, f"draining for {request.to}", draining=True)
        with suppress(StopRequested, SparkdError, OSError):  # a stop, or a lost node: there is nothing to wait for
            _drain(agent, running, request)
        agent.reporter.update(draining=False, message=str(request))


def _drain(agent: Agent, running: Running, request: SwitchRequested) -> None:
    endpoint, deadline = agent.endpoint(running), time.monotonic() + request.drain_seconds
    quiet_until, ended = time.monotonic() + QUIET_SECONDS, running.rank.ended
    while (left_seconds := deadline - time.monotonic()) > 0:
        count = agent.loop.beside(_count_requests(endpoint), left_seconds, "a look at the requests")
        if ended.is_set():
            return
        if count != 0:
            quiet_until = time.monotonic() + QUIET_SECONDS
        elif time.monotonic() >= quiet_until:
            return
        load = "requests run" if count is None else f"{count} request{'s' * (count != 1)} run{'s' * (count == 1)}"
        agent.reporter.update(message=f"draining for {request.to}: {load}, {left_seconds:.0f} s left")
        agent.loop.wait_until(ended.is_set, 0.5)


async def _count_requests(endpoint: Endpoint) -> int | None:
    """How many requests run or wait; None where the engine does not answer that."""
    try:
        counters = await endpoint.counters(1.0)
    except HttpError:
        return None
    return None if counters is None else round(counters.running + counters.waiting)
