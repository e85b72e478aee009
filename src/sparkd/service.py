"""The engine in service: made ready, watched by its head, accompanied by its workers."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import NoReturn, assert_never

from sparkd import daemon, gpu_watch, proven, readiness, supervise
from sparkd.agent import Agent
from sparkd.daemon import Daemon
from sparkd.ending import engine_dead, engine_ended
from sparkd.engine.story import Story
from sparkd.errors import EngineEndedError, StalledError
from sparkd.gpu_watch import GpuWatch
from sparkd.host.endpoint import Endpoint
from sparkd.launch.start import Running
from sparkd.lib.http_client import HttpError
from sparkd.readiness import Gate
from sparkd.report.node_report import FindingReport, Phase
from sparkd.watch import Watcher

COUNTERS_SECONDS = 1.0
"""Beside a proof that is itself short: /metrics takes 5 ms."""
ACCOMPANY_SECONDS = 5.0
"""News of the head and of the rank ring the bell; this is for the engine's own steps."""
DOCKER_SECONDS = 10.0
DOCKER_AWAY_SECONDS = 0.2
"""Between looks for the next dockerd, where the one that the rank runs under has gone: 2 s later, seen."""


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
        agent.pulse, running.rank.pidfd, _endpoint(agent), agent.plan.served_name, limits, show
    )
    if not ready:
        raise engine_ended(agent, running)
    running.ready = True
    running.note_segments(agent.host, agent.pulse)
    agent.notifier.ready()
    agent.pulse.extending = False
    agent.events.info("readiness.completion.answered", seconds=running.seconds)
    agent.pulse.start(partial(_prune, agent, running.rank.image_id))


def _prune(agent: Agent, image_id: str) -> None:
    with suppress(OSError):
        for one in agent.hands.prune_caches(image_id):
            if one.error:
                agent.events.warning("cache.folder.kept", path=one.path, reason=one.error)
            else:
                agent.events.info("cache.folder.pruned", path=one.path)


def watch(agent: Agent, running: Running) -> NoReturn:
    """Watch the serving engine until it must be given up."""
    served = f"{agent.plan.served_name} on port {agent.plan.api_port}"
    agent.phase(Phase.SERVING, served)
    service = Service(agent)
    gpu = _gpu_watch(agent)
    endpoint = _endpoint(agent)
    agent.together.prove = partial(_makes_token, endpoint)

    def tell(trouble: str) -> None:
        degraded = trouble or agent.together.trouble
        agent.phase(Phase.DEGRADED if degraded else Phase.SERVING, with_gpu(agent, degraded or served, gpu))
        service.goes_on()

    limits = supervise.Limits(agent.settings.supervise.stall_seconds, agent.settings.supervise.canary_seconds)
    watcher = Watcher(
        agent.pulse,
        endpoint,
        lambda: running.log.story,
        limits,
        agent.settings.readiness.completion_timeout_seconds,
        tell,
    )
    match watcher.run(running.rank.pidfd):
        case None:
            raise engine_ended(agent, running)
        case supervise.Dead(reason):
            raise engine_dead(agent, running, _with_cause(reason, running))
        case supervise.Stalled(reason):
            raise StalledError(_with_cause(reason, running), "sparkd starts it again")
        case unexpected:
            assert_never(unexpected)


def accompany(agent: Agent, running: Running) -> NoReturn:
    """A worker's rank has no endpoint: it is what its head says of the engine, for as long as both live."""
    agent.phase(Phase.LOADING)
    agent.pulse.extending = False
    ours = _daemon(agent)
    service: Service | None = None
    gpu = _gpu_watch(agent)
    while True:
        head = agent.together.look()[0]
        phase = head.report.phase if head.report else Phase.LOADING
        if phase not in (Phase.SERVING, Phase.DEGRADED):
            running.note_segments(agent.host, agent.pulse)
            agent.show(running.log.story)
        else:
            if service is None:
                running.ready = True
                running.note_segments(agent.host, agent.pulse)
                service = Service(agent)
            served = f"rank {agent.context.rank} of the engine that {head.name} serves"
            agent.phase(phase, with_gpu(agent, served, gpu))
            service.goes_on()
        alarmed = ours.takes_ranks_along and running.log.broken_off_at is not None
        if agent.pulse.wait(DOCKER_AWAY_SECONDS if alarmed else ACCOMPANY_SECONDS, running.rank.pidfd):
            raise engine_ended(agent, running)
        if alarmed and daemon.left(ours, agent.host):
            reason = "the engine is dead: another dockerd has started, and ends what ran under the one before"
            raise EngineEndedError(reason, "live-restore in docker's daemon.json would keep the engine")
        if running.log.story.worker_died:
            raise engine_dead(agent, running, _with_cause("a process of the rank has died", running))


def _daemon(agent: Agent) -> Daemon:
    with suppress(TimeoutError):
        return agent.pulse.beside(partial(daemon.of, agent.host), DOCKER_SECONDS, "docker")
    return Daemon()


def _gpu_watch(agent: Agent) -> GpuWatch | None:
    return GpuWatch(agent.pulse, agent.events) if agent.plan.container.gpus == "all" else None


def with_gpu(agent: Agent, message: str, gpu: GpuWatch | None) -> str:
    """A GPU that is slow serves all the same: it is no phase of its own, but a finding, and said in each."""
    slow = gpu.look() if gpu is not None else ""
    found = (FindingReport(gpu_watch.ID, "warn", slow, gpu_watch.HINT),) if slow else ()
    before = agent.reporter.report.findings
    agent.reporter.update(findings=(*(one for one in before if one.id != gpu_watch.ID), *found))
    return f"{message}; {slow}: {gpu_watch.HINT}" if slow else message


class Service:
    """A plan that has served for long enough has proven itself: its failures are forgiven, and it is known good."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._proven_at: float | None = time.monotonic() + agent.settings.supervise.proven_seconds
        agent.record(lambda boots: boots.served(agent.boot_id))

    def goes_on(self) -> None:
        if self._proven_at is not None and time.monotonic() >= self._proven_at:
            self._proven_at = None
            self._agent.proven = True
            self._agent.remember(self._agent.launches().forgiven(self._agent.plan.counted_as))
            proven.keep(self._agent)


async def _makes_token(endpoint: Endpoint, seconds: float) -> bool:
    """Whether the engine works: a token comes, or its counters move while ours waits behind other work."""
    try:
        before = await endpoint.counters(COUNTERS_SECONDS)
        with suppress(HttpError):
            if (await endpoint.complete(seconds)).token:
                return True
        after = await endpoint.counters(COUNTERS_SECONDS)
    except HttpError:
        return False
    return before is not None and after is not None and after.work != before.work


def _with_cause(reason: str, running: Running) -> str:
    blame = running.log.story.blame(time.monotonic())
    return f"{reason}; the engine said: {blame}" if blame else reason


def _endpoint(agent: Agent) -> Endpoint:
    return Endpoint(agent.plan.api_host, agent.plan.api_port, agent.plan.served_name, agent.api_key)
