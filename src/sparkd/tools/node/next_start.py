"""This machine as the next start will find it: without the rank of the agent that owns the node."""

import re
from collections.abc import Iterable
from contextlib import suppress

from msgspec.structs import replace

from sparkd.agent.preflight.engine_processes import gpu_memory_by_pid
from sparkd.base.host import CachedHost, Host
from sparkd.base.host.consumers import read_consumers
from sparkd.base.host.docker import ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.host.meminfo import FreeMemory, MemInfo
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import Process, ProcessTable
from sparkd.base.host.shm import ANY, Segment
from sparkd.base.host.sockets import Listener
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.rank_record import KnownRank, read_rank


class NextStart(CachedHost):
    """The host as the next start will find it: the rank of the process that owns the node counts as ended.

    Its processes, their memory, ports and segments count as released; where they can't be read, nothing does.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.agent: NodeOwner | None = None
        self.ranks: tuple[ContainerFacts, ...] = ()
        self._released: dict[int, Process] = {}
        self._freed_bytes = self._gpu_bytes = 0
        with suppress(OSError, ValueError):
            self.agent = host.owner()
        if self.agent is not None:
            with suppress(OSError, ValueError):
                self._release(super().docker().containers, super().processes(), read_rank(host))

    def _release(self, containers: Iterable[ContainerFacts], processes: ProcessTable, known_rank: KnownRank) -> None:
        ranks, released = [], dict[int, Process]()
        running = (container for container in containers if container.ours and container.running)
        for container in running:
            is_of_owner = whose(container, self.agent, known_rank) is Whose.OWNERS
            first = processes.get(container.pid) if is_of_owner else None
            details = self.details(first) if first else None
            if first and details and details.group.container_id == container.id:
                ranks.append(container)
                released |= {process.pid: process for process in (first, *processes.descendants(first.pid))}
        by_gpu = gpu_memory_by_pid(self, released.values())
        consumers = read_consumers(self.files, released.values(), by_gpu)
        self._freed_bytes = sum(consumer.bytes for consumer in consumers)
        self._gpu_bytes = min(self._freed_bytes, sum(by_gpu.values()))
        self.ranks, self._released = tuple(ranks), released
        query = self.gpu  # what Host was given, not a method
        self.gpu = lambda: self._without_rank(query())

    def _without_rank(self, gpu: GpuFacts) -> GpuFacts:
        return replace(
            gpu, processes=gpu.processes and tuple(user for user in gpu.processes if user.pid not in self._released)
        )

    def docker(self) -> DockerFacts:
        facts = super().docker()
        others = tuple(container for container in facts.containers if container not in self.ranks)
        return replace(facts, containers=others)

    def processes(self) -> ProcessTable:
        return ProcessTable(tuple(process for process in super().processes() if process.pid not in self._released))

    def meminfo(self) -> MemInfo:
        info, freed_bytes = super().meminfo(), self._freed_bytes
        return replace(
            info,
            free_bytes=min(info.total_bytes, info.free_bytes + freed_bytes),
            available_bytes=min(info.total_bytes, info.available_bytes + freed_bytes),
            anonymous_bytes=max(0, info.anonymous_bytes - (freed_bytes - self._gpu_bytes)),
        )

    def free_memory(self) -> FreeMemory:
        """The driver gives its memory back in large blocks, as it took it; other memory may come back in pages."""
        free = super().free_memory()
        return FreeMemory(free.bytes + self._freed_bytes, free.large_bytes + self._gpu_bytes, free.unlisted_bytes)

    def listeners(self, ports: tuple[int, ...] = ()) -> tuple[Listener, ...]:
        listeners = super().listeners(ports)
        released = {held.listener for held in self.port_holders(self._released.values(), listeners)}
        return tuple(listener for listener in listeners if listener not in released)

    def segments(self, named: re.Pattern[str] = ANY) -> tuple[Segment, ...]:
        segments = super().segments(named)
        released = self.segment_uses(self._released.values(), segments).identities if self._released else frozenset()
        return tuple(segment for segment in segments if segment.identity not in released)

    def shm_used_bytes(self) -> int:
        used_bytes = super().shm_used_bytes()
        with suppress(OSError):  # with too many files no segment counts as released
            used_bytes -= sum(segment.allocated_bytes for segment in super().segments())
            used_bytes += sum(segment.allocated_bytes for segment in self.segments())
        return used_bytes
