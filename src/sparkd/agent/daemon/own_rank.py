"""The rank of this agent, launched or taken over from an agent before: whether there is one, the threads that watch it,
and whether dockerd has ended it.
"""

import time
from functools import partial

from msgspec import Struct

from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.compilers import RESERVE_BYTES, CompilerWatch
from sparkd.agent.engine.log_position import LogPosition
from sparkd.agent.engine.log_reader import LogReader
from sparkd.agent.engine.rank import Running
from sparkd.base.host import docker, docker_config
from sparkd.base.lib.errors import RankEndedError
from sparkd.base.state.rank_record import LOG_POSITION, RANK_FILE, RankRecord
from sparkd.base.vllm.log_lines import LogForwarder


class OwnRank(Struct):
    """The rank of this agent, if any. Used by the main thread."""

    running: Running | None = None

    def take(self, running: Running) -> None:
        self.running = running

    def drop(self) -> None:
        """Forget a rank that was ended on purpose: the next launch replaces it."""
        self.running = None

    def raise_if_killed(self) -> None:
        """Raises MemoryGuardError where the guard has killed it."""
        if self.running is not None and self.running.guard is not None:
            self.running.guard.raise_if_killed()

    def raise_if_ended(self) -> None:
        """Raises RankEndedError where the rank has ended."""
        if self.running is not None and self.running.rank.ended.is_set():
            raise RankEndedError("the engine ended")

    def raise_if_halted(self) -> None:
        """Raises StalledError where the rank serves, and is stopped or frozen."""
        if self.running is not None and self.running.hang is not None:
            self.running.hang.check()


def take_rank(
    agent: Agent, rank: Rank, record: RankRecord, since: str = "0", age_seconds: float | None = None
) -> Running:
    """Make it this agent's rank from now on. `since`: the position from which its log is read. `age_seconds`: of a rank
    that an agent before this one has launched.
    """
    follow = partial(docker.follow_log, agent.host, rank.container_id)
    position = LogPosition(partial(agent.actions.write_private, LOG_POSITION), agent.journal.checkpoint)
    forwarder = LogForwarder(agent.redact_line, agent.plan.api_host)
    log = LogReader(follow, forwarder, agent.journal.put, agent.events, agent.loop.wake, since, position)
    keep_record = partial(agent.store.write_private, RANK_FILE)
    watch, started_at = make_compiler_watch(agent, rank), time.monotonic() - (age_seconds or 0.0)
    taken_over = age_seconds is not None
    running = Running(rank, log, record, keep_record, agent.host, agent.loop, watch, started_at, taken_over)
    agent.rank.take(running)
    return running


def start_threads(agent: Agent, running: Running) -> None:
    """Start the threads that watch the rank. Raises OSError, with some of them started."""
    running.guard_memory(agent.settings.memory.floor_mib << 20, agent.events)
    running.log.start()
    agent.run_aside("compilers", running.compilers.run)


def make_compiler_watch(agent: Agent, rank: Rank) -> CompilerWatch:
    guard_floor_bytes = agent.settings.memory.floor_mib << 20
    holds_back = guard_floor_bytes and agent.plan.container.gpus == "all"
    return CompilerWatch(
        # The largest compile, and room above the guard's floor: docs/adr/0064.
        floor_bytes=RESERVE_BYTES + 2 * guard_floor_bytes if holds_back else 0,
        ended=rank.ended,
        processes=partial(agent.host.container_processes, rank.pid, rank.container_id),
        available_bytes=lambda: agent.host.meminfo().available_bytes,
        set_held=partial(agent.actions.set_held, rank.container_id),
        events=agent.events,
    )


def may_have_lost_dockerd(running: Running) -> bool:
    """Whether the dockerd whose end ends the rank may have ended: the rank's log has broken off once."""
    return bool(running.record.dockerd_pid) and running.log.broken_off_at is not None


def follow_dockerd(agent: Agent, running: Running) -> bool:
    """Look which dockerd runs. Returns whether it is another than at the launch, and has not kept the rank; False where
    the look hangs.

    That a rank is kept is noted: dockerd's end ends it no longer, since a reload has turned live-restore on.
    """

    def look() -> tuple[bool, bool]:
        is_another = docker.daemon_replaced(agent.host, running.record.dockerd_pid)
        return is_another, is_another and docker_config.keeps_containers(agent.host)

    is_another, keeps_rank = agent.look(look, 3.0, "looking at dockerd", (False, False))
    if keeps_rank:
        running.note(dockerd_pid="")
    return is_another and not keeps_rank
