"""How a run ends: stop the rank, report the cause and what differs from the last good start, write the history."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from sparkd.agent.deps import Deps
from sparkd.agent.history import end_launch
from sparkd.agent.page_cache import restore_readahead
from sparkd.agent.switching import SwitchRequested, end_try, leave
from sparkd.cluster.monitor import ENDING, HINT, silence
from sparkd.engine.api_owner import find_holder
from sparkd.engine.load_progress import LAST_WORDS
from sparkd.engine.memory_guard.tenants import describe_growth
from sparkd.engine.rank import EXIT_CODE_SECONDS, LOG_END_SECONDS, UNKNOWN_CODE, Running, names_other_rank
from sparkd.lib.errors import Cause, EngineEndedError, ExitCode, PeerLostError, SparkdError
from sparkd.lib.main_loop import StopRequested
from sparkd.lib.text import GIB, MIB, sanitize
from sparkd.state.known_good import excerpt_values, find_differences, group_files, read_known_good
from sparkd.state.launch_history import STOPPED, End, LaunchHistory
from sparkd.status.model import Phase, utc_now
from sparkd.vllm.known_errors import PORT_IN_USE, explain

FAILED_GRACE_SECONDS = 5.0
"""For an engine that is given up: no request is left to finish, and preflight clears what it leaves behind."""
LOST_GRACE_SECONDS = 0.5
"""For an engine that has lost a rank. By itself a head ends in 0.3 to 0.6 s, a worker in 12 s (seen); no rank may
outlive another by more than two."""
LAST_REPORT_SECONDS = 2.0
"""How long the other nodes can read the last report."""
RELEASE_SECONDS = 3.0
"""For a head to leave service before a stopped worker ends its rank."""
ACCOUNT_SECONDS = 2.0
"""For the guard's report on the end of a rank: milliseconds, unless the machine is short of memory."""
NEWS_SECONDS = 1.5
"""For the report of the failed node, where the engine's own words name another rank."""
GONE_SECONDS = 5.0
"""For a killed rank to end, with its whole container: the other nodes' engines lose it then, and not before."""
SILENCE_SECONDS = 10.0
"""For each other node to answer once more: an answer is held back for 5 s, and a try takes 3 s longer."""
GOODBYE_SECONDS = 0.3
"""For the other nodes to read that this one leaves, before it refuses connections."""
HANG_SECONDS = 3.0
"""For dockerd to list its containers: milliseconds."""
MOST_LINES = 12
NAME_LIMIT = 80
DIFF_HINT = "sparkd diff; to go back to it: sparkd rollback"

_BY_DOCKER = frozenset(
    {
        Cause.SYSTEM_ERROR,
        Cause.LAUNCH_FAILED,
        Cause.NOT_READY,
        Cause.LOAD_STALLED,
        Cause.ENGINE_STALLED,
        Cause.ENGINE_ENDED,
    }
)
"""Causes that a hung dockerd may be behind."""
_SHORT_OF_MEMORY = frozenset({Cause.MEMORY_GUARD, Cause.KERNEL_OOM})
_BY_OTHERS = frozenset({Cause.MEMORY_TAKEN, Cause.PORT_TAKEN})
"""Not counted against the plan."""
_COUNTED = frozenset(
    {
        ExitCode.LAUNCH_FAILED,
        ExitCode.NOT_READY,
        ExitCode.ENGINE_ENDED,
        ExitCode.STALLED,
        ExitCode.MEMORY_GUARD,
        ExitCode.BUG,
    }
)

NOT_RESTARTED = (ExitCode.USAGE, ExitCode.NEEDS_PERSON, ExitCode.CONFIG)
"""By the unit: RestartPreventExitStatus."""


def engine_ended(agent: Deps, running: Running) -> EngineEndedError:
    """The error for a container that ended by itself.

    Raises MemoryGuardError where the guard killed it, PeerLostError where another rank ended first.
    """
    agent.loop.report_stopping()  # now: to find the cause takes seconds
    if (guard := running.guard) is not None:
        agent.loop.sleep_uninterruptible(ACCOUNT_SECONDS, lambda: guard.over)
        guard.raise_if_killed()
    code = UNKNOWN_CODE
    with suppress(TimeoutError, BlockingIOError):
        code = agent.loop.run_with_timeout(partial(running.read_exit_code, agent.host), EXIT_CODE_SECONDS, "docker")
    running.log.stop(LOG_END_SECONDS)
    during = "while serving" if running.ready else f"while {running.log.progress.step}"
    ended = f"the engine ended {during}, {running.seconds:.0f} s after its start, with exit code {code}"
    return engine_dead(agent, running, ended, code)


def engine_dead(agent: Deps, running: Running, reason: str, code: str = "") -> EngineEndedError:
    """The error for a dead engine, with its cause. Raises PeerLostError where another rank died first.

    The engine's own words suggest it. The other nodes confirm it: by a report, a refused connection, or silence.
    """
    agent.loop.report_stopping()
    cause, text = running.find_cause(agent.host, code)
    reason = f"{reason}: {text}" if text else f"{reason}; it named no cause"
    if agent.context.peers and cause is Cause.ENGINE_ERROR and names_other_rank(text):
        _kill_rank(agent, running, LOST_GRACE_SECONDS)
        _raise_if_peer_lost(agent, reason)
    return EngineEndedError(reason, "" if running.ready else "its log: the lines above, marked engine|", cause=cause)


def _raise_if_peer_lost(agent: Deps, reason: str) -> None:
    """Raises PeerLostError where another node reports that its rank ended first, or no longer answers."""
    began = time.monotonic()
    while (left := began + NEWS_SECONDS - time.monotonic()) > 0:
        agent.loop.wait(left)  # the monitor's check raises
    head = agent.monitor.check()[0]
    if not agent.context.is_head and head.report is not None and head.report.phase is Phase.AWAITING_PEERS:
        raise PeerLostError(f"rank 0 on {head.name} was not started in time; {reason}", HINT)
    # From here on the others may report that they end because of this rank: only their answering counts.
    agent.set_phase(Phase.FAILED, reason)
    agent.loop.sleep_uninterruptible(SILENCE_SECONDS, lambda: agent.monitor.silent_since(began) is None)
    silent = agent.monitor.silent_since(began)
    if silent is not None:
        raise silence(silent, f"has not answered since: {reason}")


def shutdown_on_request(agent: Deps, running: Running | None, request: StopRequested) -> None:
    """End the rank within its grace period, and count no failure."""
    try:
        leave(agent, running, request)
    except BaseException:  # a bug, or what a thread died of: no rank is left behind
        end_rank(agent, running)
        raise
    switched = isinstance(request, SwitchRequested)
    said, cause = (str(request), Cause.SWITCH) if switched else (STOPPED, Cause.STOP_REQUESTED)
    agent.monitor.untrack_all()
    agent.loop.report_stopping()
    agent.set_phase(Phase.STOPPING, said)
    grace_seconds: float = agent.settings.engine.stop_grace_seconds
    if running is not None and not agent.context.is_head:
        agent.loop.sleep_uninterruptible(RELEASE_SECONDS, lambda: _head_left(agent))
        if _head_left(agent):
            grace_seconds = min(grace_seconds, LOST_GRACE_SECONDS)  # no request is left to finish
    end_rank(agent, running, grace_seconds)
    end = End(said, int(ExitCode.GOOD), at=utc_now(), cause=cause)
    agent.record(lambda launches: launches.record_end(agent.boot_id, end))
    end_launch(agent, running, end)
    agent.set_phase(Phase.STOPPED)
    if agent.context.peers:
        agent.loop.sleep_uninterruptible(GOODBYE_SECONDS)


def shutdown_on_error(agent: Deps, running: Running | None, error: SparkdError) -> ExitCode:
    """Report why the run ends, stop the rank, and record the cause for the next run."""
    agent.loop.report_stopping()
    failed_in = agent.state.failed_in or agent.reporter.report.phase
    if error.cause in _BY_DOCKER and _dockerd_hangs(agent):
        error.reason, error.hint = f"dockerd runs and does not answer: {error.reason}", "systemctl restart docker"
        error.cause = Cause.DOCKER_HUNG
    elif error.cause in _SHORT_OF_MEMORY and (taken := _taken_by_others(agent, running)):
        error.reason, error.hint = f"{error.reason}; {taken}", "stop that work, or raise memory.headroom_gib"
        error.cause = Cause.MEMORY_TAKEN
    elif error.code in _COUNTED and (holder := _port_holder(agent, running, error.reason.partition(LAST_WORDS)[0])):
        error.reason, error.cause = f"{error.reason}; {holder}", Cause.PORT_TAKEN
        error.hint = "sparkd starts it again once the port is free: see the check `ports`"
    elif error.code is not ExitCode.PEER_LOST and (known := explain(error.reason.partition(LAST_WORDS)[0])) is not None:
        error.hint = known.hint
    returns = end_try(agent, error)
    agent.events.error(
        "agent.run.failed",
        code=int(error.code),
        cause=error.cause.value,
        phase=failed_in.value,
        reason=error.reason,
        hint=error.hint,
    )
    agent.monitor.untrack_all()
    agent.reporter.update(cause=error.cause.value)
    agent.set_phase(Phase.BLOCKED if error.code is ExitCode.BLOCKED else Phase.FAILED, str(error))
    reported_at = time.monotonic()
    grace_seconds = LOST_GRACE_SECONDS if agent.context.peers else FAILED_GRACE_SECONDS
    end_rank(agent, running, min(grace_seconds, agent.settings.engine.stop_grace_seconds))
    reason, hint = agent.redact(error.reason), agent.redact(error.hint)
    end = End(reason, int(error.code), hint, failed_in.value, utc_now(), error.cause)

    def count(launches: LaunchHistory) -> LaunchHistory:
        if error.code in _COUNTED and error.cause not in _BY_OTHERS and launches.open is not None:
            launches = launches.record_failure(agent.plan.counted_as, end)
        return launches.record_end(agent.boot_id, end)

    agent.record(count)
    end_launch(agent, running, end)
    if not agent.state.proven and error.code is not ExitCode.PEER_LOST:
        log_differences(agent)  # last, below the rank's own lines
    if agent.context.peers:
        agent.loop.sleep_uninterruptible(reported_at + LAST_REPORT_SECONDS - time.monotonic())
    # The plan before is to be launched, whatever has ended the new one.
    return ExitCode.NOT_READY if returns and error.code in NOT_RESTARTED else error.code


def _dockerd_hangs(agent: Deps) -> bool:
    """An engine whose log nobody reads soon hangs too; a launch, an image and an exit code need docker."""
    try:
        agent.loop.run_with_timeout(agent.host.docker, HANG_SECONDS, "docker")
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


def _taken_by_others(agent: Deps, running: Running | None) -> str:
    """Where others took more since the launch than the plan leaves above the floor; else empty."""
    if running is None or running.tenants is None:
        return ""
    gone = agent.loop.wait_fd_uninterruptible(GONE_SECONDS, running.rank.pidfd)
    if not gone or (now := running.read_tenants(agent.host, agent.loop)) is None:
        return ""
    memory = agent.settings.memory
    return describe_growth(running.tenants, now, round(memory.headroom_gib * GIB) - memory.floor_mib * MIB)


def _port_holder(agent: Deps, running: Running | None, reason: str) -> str:
    """Who else has a port of the rank's, where that kept it from serving; else empty."""
    if running is None or running.ready or not agent.context.is_head:
        return ""
    seen = running.api.holder if running.api is not None else ""
    if seen and (seen in reason or any(one in reason for one in PORT_IN_USE)):
        return seen
    if not any(one in reason for one in PORT_IN_USE):
        return ""
    with suppress(OSError, ValueError):
        look = partial(find_holder, agent.host, (agent.plan.api_port, agent.plan.master_port), running.rank.pid)
        return agent.loop.run_with_timeout(look, HANG_SECONDS, "looking at the ports")
    return ""


def log_differences(agent: Deps) -> None:
    """For a failed start: what differs from the last known good one."""
    known = read_known_good(agent.host.files, agent.report_unread)
    if not known:
        return
    found = group_files(find_differences(known[0].facts, agent.start_facts()))
    for one in found[:MOST_LINES]:
        then, now = excerpt_values(one)
        name, hint = sanitize(one.name, NAME_LIMIT), DIFF_HINT if one is found[-1] else ""
        agent.events.warning("known_good.value.changed", name=name, then=then, now=now, hint=hint)
    if len(found) > MOST_LINES:
        agent.events.warning("known_good.values.omitted", count=len(found) - MOST_LINES, hint=DIFF_HINT)
    if not found:
        hint = "configuration unchanged since the last good start; see the engine log above"
        agent.events.warning("known_good.values.unchanged", since=known[0].until, hint=hint)


def _head_left(agent: Deps) -> bool:
    """Whether the head is out of service or unreachable. One that drains still answers requests."""
    report = agent.monitor.statuses()[0].living
    return report is None or (report.phase in ENDING and not report.draining)


def _kill_rank(agent: Deps, running: Running, grace_seconds: float) -> bool:
    note = partial(running.note_segments, agent.host, agent.loop)
    return running.rank.end(agent.loop, grace_seconds, note, starting=not running.ready)


def end_rank(agent: Deps, running: Running | None, grace_seconds: float = LOST_GRACE_SECONDS) -> None:
    restore_readahead(agent)
    if running is None:
        return
    if not _kill_rank(agent, running, grace_seconds):
        agent.events.error("engine.stop.failed", container=running.rank.container_id[:12], hint="reboot this node")
    running.log.stop(LOG_END_SECONDS)
    if running.guard is not None:
        running.guard.close()
    with suppress(SparkdError, OSError):
        agent.actions.remove(running.rank)
    for segment in running.segments:
        with suppress(OSError):
            agent.actions.apply(segment)
    running.rank.close()
