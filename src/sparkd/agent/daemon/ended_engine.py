"""Concludes the run of an engine that ended, or is dead: finds the cause, and ends a rank that has lost another one.

The cause is what happened to the engine, or else its own last words. Where these name another rank, this one is killed
at once, and the other nodes' reports or their silence decide whether that rank ended first.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sparkd.agent.cluster.monitor import HINT, silent_peer_error
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.engine_cause import (
    EXIT_CODE_SECONDS,
    UNKNOWN_CODE,
    MachineFacts,
    find_cause,
    find_oom_kill,
    has_docker_ended,
    read_exit_code,
)
from sparkd.agent.engine.rank import Running
from sparkd.base.lib.endings import Stage
from sparkd.base.lib.errors import Cause, EngineDeadError, EngineEndedError, PeerLostError, RankEndedError
from sparkd.base.lib.main_loop import never
from sparkd.base.status.model import IN_SERVICE, Phase

LOST_GRACE_SECONDS = 0.5
"""Grace period of an engine that has lost a rank. By itself a head ends in 0.3 to 0.6 s, a worker in 12 s (seen); no
rank may outlive another by more than two."""
KILLS_SECONDS = 2.0
"""Limit for the guard's or the kernel's report of a kill: milliseconds, unless the machine is short of memory."""
DOCKERD_SECONDS = 2.0
"""Limit for a look whether dockerd runs: milliseconds, but over half a second where a dozen processes want a core."""
PEER_REPORT_SECONDS = 1.5
"""Time for the failed node's report to arrive, where the engine's own words name another rank."""
SILENCE_SECONDS = 10.0
"""Limit for each other node to answer once more: an answer is held back for 5 s, and a try takes 3 s longer."""

OTHER_RANK = re.compile(
    r"by peer|timed? ?out|remote (?:process|server)|broken pipe|NCCL|gloo|RayWorkerProc|actor died", re.IGNORECASE
)
"""What a rank logs when another one is gone: gloo's `Connection closed by peer`, NCCL's `remote process exited`."""


@contextmanager
def conclude_if_ended(agent: Agent) -> Iterator[None]:
    """Conclude the run where its rank ends or its engine dies. Raises what `conclude_end` returns or raises."""
    try:
        yield
    except (RankEndedError, EngineDeadError) as error:
        raise conclude_end(agent, error) from None


def conclude_end(agent: Agent, error: EngineEndedError) -> EngineEndedError:
    """Notify systemd of the end, and find its cause. Returns the error that has it. The stage is END then.

    Where the engine's own words name another rank, the steps are in this order: this rank is killed, the other nodes'
    reports are awaited, FAILED is reported, and each node is to answer once more.

    Raises MemoryGuardError where the guard killed the rank, PeerLostError where another rank ended first, and
    StopRequested at a request while it waits for the other nodes' reports.
    """
    running = agent.rank.running
    assert running is not None
    agent.loop.endings.enter(Stage.END)
    agent.loop.report_stopping()  # already now: finding the cause takes seconds
    reason, code, was_serving = error.reason, "", agent.reporter.report.phase in IN_SERVICE  # not yet in a plan's trial
    if isinstance(error, RankEndedError):
        code = _read_exit(agent, running)
        step = "serving" if was_serving else running.log.progress.step
        reason = f"{reason} while {step}, {running.seconds:.0f} s after its start, with exit code {code}"
    cause, words = _find_cause(agent, running, code)
    reason = f"{reason}: {words}" if words else f"{reason}; it named no cause"
    if agent.context.peers and cause is Cause.ENGINE_ERROR and OTHER_RANK.search(words):
        running.kill(LOST_GRACE_SECONDS)  # before the waits: no rank may outlive another
        killed_at = time.monotonic()
        _await_peer_reports(agent, reason)
        # Not before: the others take a node that reports FAILED first for the cause. From here on they may report that
        # they end because of this rank, so it only counts whether they answer.
        agent.phase.enter(Phase.FAILED, reason)
        _await_peer_answers(agent, reason, killed_at)
    return EngineEndedError(reason, "" if was_serving else "its log: sudo sparkd logs --since 1d --engine", cause=cause)


def _read_exit(agent: Agent, running: Running) -> str:
    """The exit code of a rank that has ended. Its log is read to the end first, which comes when docker has noticed the
    end, seconds late on a loaded machine. Raises MemoryGuardError.
    """
    if (guard := running.guard) is not None:
        agent.loop.wait_until(guard.over.is_set, KILLS_SECONDS)
        guard.raise_if_killed()
    running.finish_log()
    read = partial(read_exit_code, agent.host, running.rank.container_id)
    return agent.look(read, EXIT_CODE_SECONDS, "the exit code", UNKNOWN_CODE)


def _find_cause(agent: Agent, running: Running, code: str) -> tuple[Cause, str]:
    """The cause, by the machine and the log, and what names it: empty where nothing does. `code`: empty if unknown."""
    record = running.record
    look = partial(has_docker_ended, agent.host, record.dockerd_pid)
    docker_ended = agent.look(look, DOCKERD_SECONDS, "looking at dockerd", False)
    find_kill = partial(find_oom_kill, agent.host, running.rank.container_id, record.oom_kills)
    oom = agent.look(find_kill, KILLS_SECONDS, "the kernel's kills", (False, ""))
    facts = MachineFacts(docker_ended, *oom)
    return find_cause(running.log.progress, code, facts, time.monotonic(), ready=running.ready)


def _await_peer_reports(agent: Agent, reason: str) -> None:
    """Wait PEER_REPORT_SECONDS for the failed node's report. Only in this wait a stop ends the search for the cause.

    Raises PeerLostError where a node reports its end or refuses connections, and where rank 0 was never started.
    """
    agent.loop.endings.enter(Stage.CLOSING)
    agent.loop.wait_until(never, PEER_REPORT_SECONDS)  # the monitor's check raises PeerLostError in this wait
    head = agent.monitor.check()[0]
    agent.loop.endings.enter(Stage.END)
    if not agent.context.is_head and head.report is not None and head.report.phase is Phase.AWAITING_PEERS:
        raise PeerLostError(f"rank 0 on {head.name} was not started in time; {reason}", HINT)


def _await_peer_answers(agent: Agent, reason: str, since: float) -> None:
    """Wait until each tracked node has answered after `since` (monotonic). Raises PeerLostError where one does not."""
    agent.loop.wait_until(lambda: agent.monitor.silent_since(since) is None, SILENCE_SECONDS)
    silent = agent.monitor.silent_since(since)
    if silent is not None:
        raise silent_peer_error(silent, f"has not answered since: {reason}")
