"""How a life ends: the rank is stopped, the cause is told and kept, the ledger is settled."""

from __future__ import annotations

import re
import time
from contextlib import closing, suppress
from functools import partial

from sparkd import last_exit, load, proven
from sparkd.agent import Agent
from sparkd.errors import EngineEndedError, ExitCode, PeerLostError, SparkdError
from sparkd.host import docker, oom
from sparkd.launch.ledger import Failure
from sparkd.launch.start import LOG_END_SECONDS, Running
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.peers.snapshot import ENDING, Snapshot
from sparkd.report.node_report import Phase
from sparkd.together import HINT

FAILED_GRACE_SECONDS = 5.0
"""For an engine that is given up: no request is left to be finished, and what it leaves behind preflight clears."""
LOST_GRACE_SECONDS = 0.5
"""For an engine that has lost a rank: a head ends itself in 0.3 to 0.6 s, a worker takes 12 s, and no rank outlives
another for longer than two."""
LAST_REPORT_SECONDS = 2.0
"""How long the other nodes can read why this one ends."""
RELEASE_SECONDS = 3.0
"""For a head to leave service before a worker that is stopped takes its rank away."""
ACCOUNT_SECONDS = 2.0
"""For the guard's account of the end of a rank: milliseconds, but that the machine was short of memory just now."""
NEWS_SECONDS = 1.5
"""For the report of the node where it happened, when the engine's own words say that it happened elsewhere."""
SILENCE_SECONDS = 10.0
"""For each of the others to answer once more then: an answer is held back for 5 s, and a try takes 3 s longer."""
LAST_WORD_SECONDS = 0.3
"""For the others to read that this node leaves, rather than to find it gone."""
DOCKER_END_SECONDS = 30.0
"""A dockerd that died is started again after 2 s, and ends at its start what ran under the one before (3 s, seen)."""
EXIT_CODE_SECONDS = 0.5
"""Docker was seen to know a container's end some 20 ms after the kernel does."""

_ELSEWHERE = re.compile(r"by peer|timed? ?out|remote process|NCCL|gloo", re.IGNORECASE)
"""What a rank says when another one is gone: gloo's `Connection closed by peer`, NCCL's `remote process exited`."""

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


def engine_ended(agent: Agent, running: Running) -> EngineEndedError:
    """The error for a container that ended unasked. An exit code of 0 is no better: every engine death has it.

    Raises MemoryGuardError where the guard has killed it, PeerLostError where it ended for another rank's sake.
    """
    _raise_if_killed(agent, running)
    code = _exit_code(agent, running)
    running.log.stop(LOG_END_SECONDS)
    story = running.log.story
    now = time.monotonic()
    said = story.blame(now) or _dockers_end(running.log.broken_off_at, now) or _kernels_end(agent, running)
    during = "while serving" if running.ready else f"while {story.step}"
    reason = f"the engine ended {during}, {running.seconds:.0f} s after its start, with exit code {code}" + (
        f": {said}" if said else "; it named no cause"
    )
    return engine_dead(agent, running, reason, "" if running.ready else "the lines above, marked engine|, are its log")


def engine_dead(agent: Agent, running: Running, reason: str, hint: str = "") -> EngineEndedError:
    """The error for an engine that is dead. Raises PeerLostError where it died for another rank's sake.

    Its own words tell that it did, and the others where: by their reports, by refused connections, or by silence.
    """
    if agent.context.peers and _ELSEWHERE.search(reason):
        note = partial(running.note_segments, agent.host, agent.pulse)
        running.rank.end(agent.pulse, LOST_GRACE_SECONDS, note, starting=not running.ready)
        _await_news(agent, reason)
    return EngineEndedError(reason, hint)


def _await_news(agent: Agent, reason: str) -> None:
    """Raises PeerLostError where another node tells that its rank ended first, or does not answer any more."""
    began = time.monotonic()
    while (left := began + NEWS_SECONDS - time.monotonic()) > 0:
        agent.pulse.wait(left)  # the guard raises
    head = agent.together.look()[0]
    if not agent.context.is_head and head.report is not None and head.report.phase is Phase.AWAITING_PEERS:
        raise PeerLostError(f"rank 0 on {head.name} was not started in time; {reason}", HINT)
    # From here on the others may say that they end for this rank's sake: only whether they answer counts.
    agent.phase(Phase.FAILED, reason)
    agent.pulse.linger(SILENCE_SECONDS, lambda: agent.together.unheard_since(began) is None)
    quiet = agent.together.unheard_since(began)
    if quiet is not None:
        raise PeerLostError(f"rank {quiet.rank} on {quiet.name} has not answered since: {reason}", HINT)


def _dockers_end(broken_off_at: float | None, now: float) -> str:
    """Words for a dockerd that went away under the engine; empty where it did not."""
    if broken_off_at is None or now - broken_off_at > DOCKER_END_SECONDS:
        return ""
    return "docker went away shortly before"


def _kernels_end(agent: Agent, running: Running) -> str:
    """Words for processes that the kernel killed for memory since the launch; empty where it killed none."""
    now, before = oom.kills(agent.host.files), running.oom_kills
    if now is None or before is None or now <= before:
        return ""
    return "the kernel has killed for want of memory since its start: journalctl -k -g oom-kill"


def _raise_if_killed(agent: Agent, running: Running) -> None:
    guard = running.guard
    if guard is not None:
        agent.pulse.linger(ACCOUNT_SECONDS, lambda: guard.over)
        if (error := guard.killed) is not None:
            raise error


def _exit_code(agent: Agent, running: Running) -> str:
    with suppress(OSError, DockerUnreadableError):
        code = agent.pulse.beside(partial(_ask_exit_code, agent, running), EXIT_CODE_SECONDS, "docker")
        if code is not None:
            return str(code)
    return "unknown (docker does not say)"


def _ask_exit_code(agent: Agent, running: Running) -> int | None:
    """Docker knows of the end a little later than the kernel."""
    deadline = time.monotonic() + EXIT_CODE_SECONDS
    with closing(agent.host.docker_reader()) as reader:
        while docker.running(agent.host) and time.monotonic() < deadline:
            code = docker.exit_code(reader, running.rank.container_id)
            if code is not None:
                return code
            time.sleep(0.02)
    return None


def stop(agent: Agent, running: Running | None) -> None:
    """Somebody asked the agent to stop: end the rank within its grace, and count nothing."""
    agent.together.untie()
    agent.notifier.stopping()
    agent.phase(Phase.STOPPING, last_exit.STOPPED)
    agent.pulse.extending = True
    grace_seconds: float = agent.settings.engine.stop_grace_seconds
    if running is not None and not agent.context.is_head:
        agent.pulse.linger(RELEASE_SECONDS, lambda: _left_service(agent.together.peers.snapshots()[0]))
        if _left_service(agent.together.peers.snapshots()[0]):
            grace_seconds = min(grace_seconds, LOST_GRACE_SECONDS)  # no request is left to be finished
    _end_rank(agent, running, grace_seconds)
    agent.remember(agent.launches().closed())
    agent.record(lambda boots: boots.closed(agent.boot_id))
    agent.keep(last_exit.FILE, last_exit.stopped())
    agent.phase(Phase.STOPPED)
    if agent.context.peers:
        agent.pulse.linger(LAST_WORD_SECONDS)


def mourn(agent: Agent, running: Running | None, error: SparkdError) -> ExitCode:
    """Tell why the life ends, stop what still runs, and keep the cause for the next one."""
    failed_in = agent.failed_in or agent.reporter.report.phase
    agent.events.error("life.failed", code=int(error.code), phase=failed_in.value, reason=error.reason, hint=error.hint)
    agent.together.untie()
    agent.pulse.extending = True
    agent.phase(Phase.BLOCKED if error.code is ExitCode.BLOCKED else Phase.FAILED, str(error))
    told_at = time.monotonic()
    grace_seconds = LOST_GRACE_SECONDS if agent.context.peers else FAILED_GRACE_SECONDS
    _end_rank(agent, running, min(grace_seconds, agent.settings.engine.stop_grace_seconds))
    launches = agent.launches()
    counted = error.code in _COUNTED and launches.open is not None
    failure = Failure(agent.redact(error.reason), int(error.code))
    agent.remember(launches.failed(agent.plan.counted_as, failure) if counted else launches.closed())
    handed_over = error.code is ExitCode.NEEDS_PERSON
    agent.record(lambda boots: boots.forgiven() if handed_over else boots.closed(agent.boot_id))
    agent.keep(last_exit.FILE, last_exit.failed(error, failed_in, agent.redact))
    if not agent.proven and error.code is not ExitCode.PEER_LOST:
        proven.tell_what_differs(agent)  # last: the rank has ended by now, and so have its lines
    if agent.context.peers:
        agent.pulse.linger(told_at + LAST_REPORT_SECONDS - time.monotonic())
    return error.code


def _left_service(head: Snapshot) -> bool:
    report = head.living
    return report is None or report.phase in ENDING


def _end_rank(agent: Agent, running: Running | None, grace_seconds: float) -> None:
    load.restore(agent)
    if running is None:
        return
    note = partial(running.note_segments, agent.host, agent.pulse)
    if not running.rank.end(agent.pulse, grace_seconds, note, starting=not running.ready):
        agent.events.error("rank.end.failed", container=running.rank.container_id[:12], hint="reboot this node")
    running.log.stop(LOG_END_SECONDS)
    if running.guard is not None:
        running.guard.close()
    with suppress(SparkdError, OSError):
        agent.hands.remove(running.rank)
    for segment in running.segments:
        with suppress(OSError):
            agent.hands.apply(segment)
    running.rank.close()
