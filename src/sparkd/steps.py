"""The steps of a life, each with the agent in hand. The story they make is told in `life`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NoReturn, assert_never

from sparkd import hooks, readiness, supervise
from sparkd.admission import Policy, Ways, admit
from sparkd.agent import Agent
from sparkd.ending import engine_ended
from sparkd.engine.forward import Forwarder
from sparkd.engine.story import Story
from sparkd.errors import BlockedError, EngineEndedError, NeedsPersonError, StalledError
from sparkd.host import docker
from sparkd.host.endpoint import Endpoint
from sparkd.launch import ledger
from sparkd.launch.start import Running, start
from sparkd.preflight import hook_list
from sparkd.preflight.check import Finding
from sparkd.readiness import Gate
from sparkd.report.node_report import FindingReport, Phase
from sparkd.watch import Watcher

DOCKER_POLL_SECONDS = 0.5


def examine(agent: Agent) -> bool:
    """Preflight: look, mend what may be mended, look again; whether docker could be seen all the while.

    Raises BlockedError (10) or NeedsPersonError (17).
    """
    docker_was_up = docker.running(agent.host)
    wanted, context = agent.settings.preflight, agent.context

    def run_hooks() -> tuple[Finding, ...]:
        programs = hook_list.listed(agent.host.files)
        return hooks.run(programs, agent.pulse, hooks.environment(context.role, context.rank))

    def show(findings: tuple[Finding, ...]) -> None:
        reports = (FindingReport(f.id, f.verdict.level.value, f.verdict.reason, f.verdict.hint) for f in findings)
        agent.reporter.update(findings=tuple(reports))

    agent.phase(Phase.PREFLIGHT)
    policy = Policy(wanted.skip, wanted.downgrade, wanted.allow_fixes, wanted.wait_seconds)
    admit(
        context.checks,
        agent.host,
        agent.hands,
        policy,
        Ways(run_hooks, agent.wait, agent.pulse.beside, agent.events, show),
    )
    return docker_was_up


def await_docker(agent: Agent) -> None:
    """Wait for as long as it takes."""
    while not docker.running(agent.host):
        agent.phase(Phase.AWAITING_DOCKER, "waiting for dockerd: systemctl start docker")
        agent.pulse.wait(DOCKER_POLL_SECONDS)


def cool(agent: Agent) -> bool:
    """Hold a plan back that failed lately; whether it was.

    Raises NeedsPersonError (exit 17) after too many failures in a row.
    """
    launches = agent.launches()
    seconds = launches.wait_seconds(agent.plan.digest)
    if seconds is None:
        failed = len(ledger.COOLING_SECONDS)
        agent.remember(launches.forgiven(agent.plan.digest))
        raise NeedsPersonError(
            f"{failed} launches of this plan in a row ended within {ledger.PROVEN_SECONDS / 60:.0f} minutes of service"
            + (f"; the last: {agent.reporter.report.last_cause}" if agent.reporter.report.last_cause else ""),
            f"mend the cause, then: systemctl start sparkd-{agent.context.role}",
        )
    if seconds:
        agent.phase(Phase.COOLING, f"{seconds} s before the next launch of a plan that failed")
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            agent.wait(min(1.0, left), f"{left:.0f} s before the next launch of a plan that failed")
    return seconds > 0


def launch(agent: Agent) -> Running:
    """Start this node's rank."""
    agent.pulse.wait(0)  # whoever asked to stop during the preflight gets no container
    agent.phase(Phase.LAUNCHING, f"starting a container of {agent.plan.image}")
    if not agent.remember(agent.launches().opened(agent.plan.digest, agent.boot_id)):
        raise BlockedError(
            "the count of failed launches can't be written, and bounds crash loops", "df -h /var/lib/sparkd"
        )
    forwarder = Forwarder(agent.redact, agent.plan.api_host)
    epoch = agent.reporter.report.epoch
    running = start(
        agent.hands, agent.plan, epoch, agent.host, forwarder, agent.journal.put, agent.events, agent.pulse.ring
    )
    rank = running.rank
    engine = replace(agent.reporter.report.engine, container_id=rank.container_id, image=rank.image_id)
    agent.reporter.update(engine=engine)
    agent.events.info(
        "launch.container.started", name=rank.name, container=rank.container_id[:12], image=agent.plan.image
    )
    return running


def make_ready(agent: Agent, running: Running) -> None:
    """Follow the load until a completion has come, then tell systemd."""
    agent.phase(Phase.LOADING)

    def show(gate: Gate) -> Story:
        story = running.log.story
        running.note_segments(agent.host, agent.pulse)  # a stop during the load must know what to clear
        agent.show(story, gate.value if gate is not Gate.HTTP else "")
        return story

    limits = readiness.Limits(
        agent.settings.readiness.timeout_seconds, agent.settings.readiness.completion_timeout_seconds
    )
    ready = readiness.await_ready(
        agent.pulse, running.rank.pidfd, partial(_endpoint, agent), agent.plan.served_name, limits, show
    )
    if not ready:
        raise engine_ended(agent, running)
    running.ready = True
    running.note_segments(agent.host, agent.pulse)
    agent.notifier.ready()
    agent.pulse.extending = False
    agent.events.info("readiness.completion.answered", seconds=running.seconds)
    with suppress(OSError):
        for folder in agent.hands.prune_caches(running.rank.image_id):
            agent.events.info("cache.folder.pruned", path=folder)


def watch(agent: Agent, running: Running) -> NoReturn:
    """Watch the serving engine until it must be given up."""
    served = f"{agent.plan.served_name} on port {agent.plan.api_port}"
    agent.phase(Phase.SERVING, served)
    proven_at = time.monotonic() + ledger.PROVEN_SECONDS
    proven = False

    def tell(degraded: str) -> None:
        nonlocal proven
        agent.phase(Phase.DEGRADED if degraded else Phase.SERVING, degraded or served)
        if not proven and time.monotonic() >= proven_at:
            proven = True
            agent.remember(agent.launches().forgiven(agent.plan.digest))

    limits = supervise.Limits(agent.settings.supervise.stall_seconds, agent.settings.supervise.canary_seconds)
    watcher = Watcher(
        agent.pulse,
        partial(_endpoint, agent),
        lambda: running.log.story,
        limits,
        agent.settings.readiness.completion_timeout_seconds,
        tell,
    )
    match watcher.run(running.rank.pidfd):
        case None:
            raise engine_ended(agent, running)
        case supervise.Dead(reason):
            raise EngineEndedError(_with_cause(reason, running))
        case supervise.Stalled(reason):
            raise StalledError(_with_cause(reason, running), "sparkd starts it again")
        case unexpected:
            assert_never(unexpected)


def _with_cause(reason: str, running: Running) -> str:
    blame = running.log.story.blame(time.monotonic())
    return f"{reason}; the engine said: {blame}" if blame else reason


def _endpoint(agent: Agent) -> Endpoint:
    return Endpoint(agent.plan.api_host, agent.plan.api_port, agent.plan.served_name, agent.api_key)
