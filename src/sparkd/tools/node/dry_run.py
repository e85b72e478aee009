"""Findings of preflight without any change: for a plan, for settings that may not be on disk yet, or without a plan."""

import re
from collections.abc import Iterable
from contextlib import suppress

from msgspec.structs import replace

from sparkd.agent.preflight.check import Finding, Level, Verdict
from sparkd.agent.preflight.engine_processes import gpu_memory_by_pid
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.runner import build_checks, build_unplanned, by_policy, examine, without_skipped
from sparkd.base.cluster.membership import NodeContext, check_inputs, resolve_context
from sparkd.base.config import Settings
from sparkd.base.host import CachedHost, Host
from sparkd.base.host.consumers import read_consumers
from sparkd.base.host.docker import ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.host.meminfo import FreeMemory, MemInfo
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import Process, ProcessTable
from sparkd.base.host.shm import ANY, Segment
from sparkd.base.host.sockets import Listener
from sparkd.base.lib.errors import ConfigError
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.rank_record import KnownRank, read_rank
from sparkd.base.status.model import parse, read_report
from sparkd.tools.node import render
from sparkd.tools.node.render import Owner, PreflightReport


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


def examine_settings(config: Settings, host: Host) -> PreflightReport:
    """A dry run with settings that may not be on disk yet, also with those that make no plan."""
    try:
        return examine_plan(resolve_context(config, None, host), config, host)
    except ConfigError as error:
        return examine_without_plan(error, None, config, host)


def examine_plan(node: NodeContext, config: Settings, host: Host) -> PreflightReport:
    """A dry run. Neither `Actions` nor anything that could start a program is imported here."""
    policy = config.preflight
    checks = without_skipped(build_checks(check_inputs(node)), policy.skip)
    host = NextStart(host)
    return _make_report(by_policy(examine(checks, host), policy), node.role, config, host)


def examine_without_plan(error: ConfigError, role: str | None, config: Settings, host: Host) -> PreflightReport:
    """A dry run of the checks that need no plan, since the configuration makes none. `error`: the reason."""
    fault = Verdict(Level.BLOCK, "; ".join(error.reason.splitlines()), error.hint)
    skipped = Verdict(Level.SKIPPED, "needs a plan, which the configuration does not give")
    unplanned, policy = build_unplanned(config), config.preflight
    checks = without_skipped([check for check in unplanned.values() if check is not None], policy.skip)
    unexamined = [name for name, check in unplanned.items() if check is None and name not in policy.skip]
    host = NextStart(host)
    findings = (
        Finding(render.CONFIGURATION, fault, {}, 0.0),
        *by_policy(examine(checks, host), policy),
        *(Finding(name, skipped, {}, 0.0) for name in unexamined),
    )
    return _make_report(findings, role or "no role yet", config, host)


def _make_report(findings: tuple[Finding, ...], role: str, config: Settings, host: NextStart) -> PreflightReport:
    programs = list_hooks(host.files)
    findings += tuple(hook.refusal for hook in programs if hook.problem)
    return PreflightReport(
        node=host.name(),
        role=role,
        changes_nothing=True,
        findings=findings,
        fixes=render.intended_fixes(findings, config.preflight.allow_fixes),
        hooks=tuple(hook.path for hook in programs if not hook.problem),
        owner=_describe_owner(host),
    )


def _describe_owner(host: NextStart) -> Owner | None:
    """The process that owns the node; None where there is none."""
    if (agent := host.agent) is None or not agent.pid:
        return None
    report = parse(read_report(host.files))
    phase = since = ""
    if report is not None and report.incarnation == agent.invocation:
        phase, since = report.phase.value, report.since
    return Owner(agent.pid, agent.command, phase, since, tuple(rank.name for rank in host.ranks))
