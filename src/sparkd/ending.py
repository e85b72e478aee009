"""How a life ends: the rank is stopped, the cause is told and kept, the ledger is settled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sparkd.agent import LAST_EXIT_FILE, Agent, utc_now
from sparkd.errors import EngineEndedError, ExitCode, SparkdError
from sparkd.host import docker
from sparkd.host.docker import DockerUnreadableError
from sparkd.launch.start import LOG_END_SECONDS, Running
from sparkd.report.node_report import Phase

FAILED_GRACE_SECONDS = 5.0
"""For an engine that is given up: no request is left to be finished, and what it leaves behind preflight clears."""
EXIT_CODE_SECONDS = 0.5
"""Docker was seen to know a container's end some 20 ms after the kernel does."""

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
    """The error for a container that ended unasked. An exit code of 0 is no better: every engine death has it."""
    code = _exit_code(agent, running)
    running.log.stop(LOG_END_SECONDS)
    story = running.log.story
    said = story.blame(time.monotonic())
    during = "while serving" if running.ready else f"while {story.step}"
    return EngineEndedError(
        f"the engine ended {during}, {running.seconds:.0f} s after its start, with exit code {code}"
        + (f": {said}" if said else "; it named no cause"),
        "" if running.ready else "the lines above, marked engine|, are its log",
    )


def _exit_code(agent: Agent, running: Running) -> str:
    with suppress(OSError, DockerUnreadableError):
        code = agent.pulse.beside(partial(_ask_exit_code, agent, running), EXIT_CODE_SECONDS, "docker")
        if code is not None:
            return str(code)
    return "unknown (docker does not say)"


def _ask_exit_code(agent: Agent, running: Running) -> int | None:
    """Docker knows of the end a little later than the kernel."""
    deadline = time.monotonic() + EXIT_CODE_SECONDS
    client = docker.client()
    try:
        while docker.running(agent.host) and time.monotonic() < deadline:
            code = docker.exit_code(client, running.rank.container_id)
            if code is not None:
                return code
            time.sleep(0.02)
    finally:
        client.close()
    return None


def stop(agent: Agent, running: Running | None) -> None:
    """Somebody asked the agent to stop: end the rank within its grace, and count nothing."""
    agent.notifier.stopping()
    agent.phase(Phase.STOPPING, "a stop was asked for")
    agent.pulse.extending = True
    _end_rank(agent, running, agent.settings.engine.stop_grace_seconds)
    agent.remember(agent.launches().closed())
    agent.phase(Phase.STOPPED)


def mourn(agent: Agent, running: Running | None, error: SparkdError) -> ExitCode:
    """Tell why the life ends, stop what still runs, and keep the cause for the next one."""
    failed_in = agent.reporter.report.phase
    agent.events.error("life.failed", code=int(error.code), phase=failed_in.value, reason=error.reason, hint=error.hint)
    agent.pulse.extending = True
    agent.phase(Phase.BLOCKED if error.code is ExitCode.BLOCKED else Phase.FAILED, str(error))
    _end_rank(agent, running, min(FAILED_GRACE_SECONDS, agent.settings.engine.stop_grace_seconds))
    launches = agent.launches()
    counted = error.code in _COUNTED and launches.open is not None
    agent.remember(launches.failed(agent.plan.digest) if counted else launches.closed())
    agent.keep(LAST_EXIT_FILE, last_exit(error, failed_in, agent.redact))
    return error.code


def last_exit(error: SparkdError, phase: Phase, redact: Callable[[str], str]) -> str:
    """Text of last-exit.json, which anybody may read."""
    fields = {"schema": 1, "code": int(error.code), "reason": redact(error.reason), "hint": redact(error.hint)}
    return json.dumps({**fields, "phase": phase.value, "at": utc_now()}, indent=1) + "\n"


def _end_rank(agent: Agent, running: Running | None, grace_seconds: float) -> None:
    if running is None:
        return
    note = partial(running.note_segments, agent.host, agent.pulse)
    if not running.rank.end(agent.pulse, grace_seconds, note, starting=not running.ready):
        agent.events.error("rank.end.failed", container=running.rank.container_id[:12], hint="reboot this node")
    running.log.stop(LOG_END_SECONDS)
    with suppress(SparkdError, OSError):
        agent.hands.remove(running.rank)
    for segment in running.segments:
        with suppress(OSError):
            agent.hands.apply(segment)
    running.rank.close()
