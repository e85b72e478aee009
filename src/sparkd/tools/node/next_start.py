"""The machine as the next start of sparkd will find it: without the rank that the node's living agent has now."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from msgspec.structs import replace

from sparkd.agent.preflight.engine_processes import gpu_memory_by_pid
from sparkd.base.host import CachedHost, Host, meminfo
from sparkd.base.host.docker import ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.host.meminfo import FreeMemory, MemInfo
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import Process, ProcessTable
from sparkd.base.host.shm import ANY, Segment
from sparkd.base.host.sockets import Listener
from sparkd.base.state.rank_record import KnownRank, Whose, read_rank, whose


class NextStart(CachedHost):
    """Own is a container only where it is the rank of the living process that owns the node.

    Its processes, their memory, ports and segments count as released. Where that can't be read, nothing does.
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

    def _release(self, containers: Iterable[ContainerFacts], table: ProcessTable, known: KnownRank) -> None:
        own, released = [], dict[int, Process]()
        for one in containers:
            owners = one.ours and one.running and whose(one, self.agent, known) is Whose.OWNERS
            first = table.get(one.pid) if owners else None
            details = self.details(first) if first else None
            if first and details and details.group.container_id == one.id:
                own.append(one)
                released |= {process.pid: process for process in (first, *table.descendants(first.pid))}
        by_gpu = gpu_memory_by_pid(self, released.values())
        self._freed_bytes = sum(one.bytes for one in meminfo.read_consumers(self.files, released.values(), by_gpu))
        self._gpu_bytes = min(self._freed_bytes, sum(by_gpu.values()))
        self.ranks, self._released, query = tuple(own), released, self.gpu
        self.gpu = lambda: self._without_rank(query())

    def _without_rank(self, gpu: GpuFacts) -> GpuFacts:
        return replace(gpu, processes=gpu.processes and tuple(p for p in gpu.processes if p.pid not in self._released))

    def docker(self) -> DockerFacts:
        facts = super().docker()
        return replace(facts, containers=tuple(one for one in facts.containers if one not in self.ranks))

    def processes(self) -> ProcessTable:
        return ProcessTable(tuple(one for one in super().processes() if one.pid not in self._released))

    def meminfo(self) -> MemInfo:
        info, freed = super().meminfo(), self._freed_bytes
        return replace(
            info,
            free_bytes=min(info.total_bytes, info.free_bytes + freed),
            available_bytes=min(info.total_bytes, info.available_bytes + freed),
            anonymous_bytes=max(0, info.anonymous_bytes - (freed - self._gpu_bytes)),
        )

    def free_memory(self) -> FreeMemory:
        """The driver gives its memory back in large blocks, as it took it; other memory may come back in pages."""
        found = super().free_memory()
        return FreeMemory(found.bytes + self._freed_bytes, found.large_bytes + self._gpu_bytes)

    def listeners(self, ports: tuple[int, ...] = ()) -> tuple[Listener, ...]:
        found = super().listeners(ports)
        own = {held.listener for held in self.port_holders(self._released.values(), found)}
        return tuple(one for one in found if one not in own)

    def segments(self, named: re.Pattern[str] = ANY) -> tuple[Segment, ...]:
        found = super().segments(named)
        own = self.segment_uses(self._released.values(), found).identities if self._released else frozenset()
        return tuple(one for one in found if one.identity not in own)

    def shm_used_bytes(self) -> int:
        used = super().shm_used_bytes()
        with suppress(OSError):  # of too many files, none count as released
            used -= sum(one.allocated_bytes for one in super().segments())
            used += sum(one.allocated_bytes for one in self.segments())
        return used
