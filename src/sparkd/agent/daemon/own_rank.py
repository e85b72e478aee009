"""The rank of this agent, launched or taken over from an agent before: the threads that watch it, and whether dockerd
has ended it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from sparkd.agent.actions.processes import Rank
from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.compilers import RESERVE_BYTES, CompilerWatch
from sparkd.agent.engine.log_reader import LogReader
from sparkd.agent.engine.rank import Running
from sparkd.base.host import caches, docker, docker_config
from sparkd.base.state.rank_record import LOG_POSITION, RankRecord
from sparkd.base.vllm.log_lines import LogForwarder


def take_rank(agent: Agent, rank: Rank, record: RankRecord, since: str = "0", age_seconds: float = 0.0) -> Running:
    """Make it this agent's rank from now on. `since`: the position from which its log is read."""
    follow = partial(docker.follow_log, agent.host, rank.container_id)
    keep = partial(agent.actions.write_private, LOG_POSITION)
    forwarder = LogForwarder(agent.redact_line, agent.plan.api_host)
    journal = agent.journal
    log = LogReader(follow, forwarder, journal.put, agent.events, agent.loop.wake, since, keep, journal.checkpoint)
    running = Running(rank, log, record, agent.store.write_rank, agent.host, agent.loop, age_seconds)
    agent.rank.take(running)
    return running


def start_threads(agent: Agent, running: Running) -> None:
    """Start the threads that watch the rank. Raises OSError, with some of them started."""
    running.guard_memory(agent.settings.memory.floor_mib << 20, agent.events)
    running.log.start()
    _watch_compilers(agent, running)


def _watch_compilers(agent: Agent, running: Running) -> None:
    floor_bytes = agent.settings.memory.floor_mib << 20
    running.compilers = CompilerWatch(
        short_bytes=RESERVE_BYTES + 2 * floor_bytes if floor_bytes and agent.plan.container.gpus == "all" else 0,
        ended=running.rank.ended,
        processes=partial(agent.host.container_processes, running.rank.pid, running.rank.container_id),
        available_bytes=lambda: agent.host.meminfo().available_bytes,
        set_running=partial(agent.actions.pause_process, running.rank.container_id),
        events=agent.events,
    )
    agent.run_aside("compilers", running.compilers.run)
    agent.run_aside("objects", partial(_count_objects, agent, running))


def _count_objects(agent: Agent, running: Running) -> None:
    """Count object files until the rank has ended, in a thread of its own: the disk may hang, and the other one watches
    memory.
    """
    while not running.rank.ended.wait(5.0):
        if running.compiler_count:
            with suppress(OSError, ValueError):
                names = (cache.name for cache in agent.plan.caches)
                running.objects = caches.count_objects(agent.host.files, running.rank.image_id, names)


def is_alarmed(running: Running) -> bool:
    """Whether dockerd may be gone, where its end would end the rank."""
    return bool(running.record.dockerd_pid) and running.log.broken_off_at is not None


def is_ended_by_docker(agent: Agent, running: Running) -> bool:
    """Whether another dockerd runs than at the launch, and ends the rank. One that keeps the rank is noted."""

    def look() -> tuple[bool, bool]:
        is_replaced = docker.daemon_replaced(agent.host, running.record.dockerd_pid)
        return is_replaced, is_replaced and docker_config.keeps_containers(agent.host)

    # Where dockerd hangs, the caller looks again.
    is_replaced, keeps_rank = agent.look(look, 3.0, "looking at dockerd", (False, False))
    if keeps_rank:
        running.note(dockerd_pid="")  # a reload has turned live-restore on since the launch
    return is_replaced and not keeps_rank
