"""Strays: processes and containers of engines that have lost whoever started them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from sparkd.preflight import engines, gpu_memory, port_use
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.engines import Engine, Leader
from sparkd.preflight.fixes import EndProcess, RemoveContainer
from sparkd.preflight.port_use import PortUse
from sparkd.preflight.problems import Problem, verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.owner import NodeOwner
    from sparkd.host.processes import ProcessTable


class Container(Struct, frozen=True):
    """A container that has processes of engines in it, or our label on it."""

    id: str
    name: str
    ours: bool
    invocation: str
    running: bool


class StrayFacts(Struct, frozen=True):
    engines: tuple[Engine, ...]
    containers: tuple[Container, ...]
    docker_known: bool
    docker_error: str
    """Why a living dockerd could not be read; empty where it could, or where none lives."""
    owner: NodeOwner | None
    """Who holds the node's lock."""
    ports: tuple[PortUse, ...]
    """That engines listen on."""
    zombies: tuple[str, ...]
    scanned: int
    """Processes looked at."""


class StrayWorkers(Check[StrayFacts], frozen=True):
    """No engine but the one to come. What is orphaned beyond doubt is ended; anything else is named and left alone."""

    tried: frozenset[tuple[int, int]] = frozenset()
    """(pid, start time) of processes that were to be ended already."""
    tried_containers: frozenset[str] = frozenset()
    """Full ids of containers that were to be removed already."""
    id: ClassVar[str] = "stray-workers"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="every process; docker's containers; the engines' listening sockets",
        source="vLLM issue 55510; measured on vLLM 0.32",
        fixes=("end-process", "remove-container"),
        page="""\
The workers of vLLM outlive the process that started them: killed, it leaves VLLM::EngineCore and VLLM::Worker_TP
behind, adopted by init, with the memory, the segments and port 29501, and the next launch fails.

A stray is
  - a container with sparkd's label whose agent is gone: another invocation, or nobody, owns the node. It is removed.
  - a VLLM::* process adopted by init, or by the first process of a container, whose process group has lost its
    leader. It is ended with its descendants: SIGTERM, then SIGKILL.

A `vllm serve` is never ended: it leads its engine, and whoever started it with nohup over ssh finds it adopted too.
Nor is a ray::RayWorker*, a rank under Ray: it leads its own group, and ends by itself when its raylet is gone.

  block    strays (cleared by ending them), or a living engine of somebody else, which is named with the ports that it
           holds and never touched.
  unknown  a process in a container that docker can't be asked about, or a VLLM::* process adopted by init whose group
           has a living leader that is no engine, such as a shell: whether it is orphaned can't be told.
  warn     zombies: they hold nothing and go when their parent asks for them.""",
    )

    def probe(self, host: Host) -> StrayFacts:
        table = host.processes()
        found = engines.find(host, table)
        if found:
            found = _with_gpu(host, table, found)
        docker = host.docker()
        seen = tuple(
            Container(one.id, one.name, one.ours, one.invocation, one.running)
            for one in docker.containers
            if one.ours or any(engine.container_id == one.id for engine in found)
        )
        pids = frozenset(member.pid for engine in found for member in engine.members)
        return StrayFacts(
            engines=found,
            containers=seen,
            docker_known=docker.known,
            docker_error=docker.error,
            owner=host.owner(),
            ports=port_use.lasting(host, table, pids),
            zombies=_zombies(table),
            scanned=len(table.processes),
        )

    def judge(self, facts: StrayFacts) -> Verdict:
        ours = {one.id: one for one in facts.containers if one.ours}
        problems = [self._container(facts, one) for one in ours.values()]
        for engine in facts.engines:
            if engine.container_id in ours or engine.leader is Leader.ENGINE:
                continue  # named with its container, or with the main process that it belongs to
            problems.append(self._engine(facts, engine))
        problems += [Problem(Level.WARN, zombie) for zombie in facts.zombies]
        if facts.docker_error:
            reason = f"docker can't be asked for its containers: {facts.docker_error}"
            problems.append(Problem(Level.UNKNOWN, reason, "look at: systemctl status docker", awaits="docker"))
        away = "" if facts.docker_known else "; docker is away, so containers were not looked at"
        return verdict(problems, f"none among {facts.scanned} processes{away}")

    def _container(self, facts: StrayFacts, container: Container) -> Problem:
        inside = [one for one in facts.engines if one.container_id == container.id]
        held = sum(member.frees_bytes for engine in inside for member in engine.members)
        what = f"container {container.name} ({container.id[:12]})"
        owner = facts.owner
        if owner is not None and not owner.invocation:
            reason = f"{what}: whether its agent is pid {owner.pid}, which owns this node, can't be told"
            return Problem(Level.UNKNOWN, reason, f"look at: ps {owner.pid}")
        if owner is not None and owner.invocation == container.invocation:
            reason = f"{what} is the rank of the agent that owns this node: pid {owner.pid} ({owner.command})"
            return Problem(Level.BLOCK, reason, "stop that first: systemctl stop sparkd-head sparkd-worker")
        state = f"still runs and holds {size(held)}" if container.running else "is left over"
        if container.id in self.tried_containers:
            return _stuck_container(inside, f"{what} of an agent that is gone {state} and can't be removed")
        fix = RemoveContainer(container.id, container.name, frees_bytes=held)
        return Problem(Level.BLOCK, f"{what} of an agent that is gone {state}", "remove it", fixes=(fix,))

    def _engine(self, facts: StrayFacts, engine: Engine) -> Problem:
        if engine.container_id and not facts.docker_known:
            reason = f"{_words(facts, engine)}: docker can't be asked whose it is"
            return Problem(Level.UNKNOWN, reason, "systemctl start docker", awaits="docker")
        # A `vllm serve` is its engine's leader, whoever adopted it: started over ssh with nohup, it always is adopted.
        if engine.serves or not engine.adopted or engine.leader is Leader.ITSELF:
            return Problem(Level.BLOCK, f"a living engine: {_words(facts, engine)}", _how_to_stop(facts, engine))
        if engine.leader is Leader.OTHER:
            reason = f"{_words(facts, engine)}: its group's leader lives but is no engine, so it may be orphaned or not"
            return Problem(Level.UNKNOWN, reason, f"if nobody needs it: kill {engine.top.pid}")
        return self._stray(facts, engine)

    def _stray(self, facts: StrayFacts, engine: Engine) -> Problem:
        stuck = [one for one in engine.members if (one.pid, one.start_time) in self.tried]
        asleep = [one for one in stuck if one.state == "D"]
        if asleep:
            names = ", ".join(f"pid {one.pid} ({one.comm})" for one in asleep)
            reason = f"{names} sleeps in the kernel (state D) and can't be ended"
            # A driver that gives memory back may hold it for a while: it is waited for first.
            return Problem(Level.BLOCK, reason, "reboot this node", needs_person=True, awaits=f"{names} to end")
        if stuck:
            reason = f"an orphaned engine does not end: {_words(facts, engine)}"
            return Problem(Level.BLOCK, reason, f"look at: cat /proc/{stuck[0].pid}/stack")
        fixes = tuple(EndProcess(one.pid, one.start_time, one.comm, one.frees_bytes) for one in engine.members)
        return Problem(Level.BLOCK, f"an orphaned engine: {_words(facts, engine)}", "end it", fixes=fixes)


def _stuck_container(inside: list[Engine], reason: str) -> Problem:
    asleep = [one for engine in inside for one in engine.members if one.state == "D"]
    if not asleep:
        return Problem(Level.BLOCK, reason, "look at: systemctl status docker")
    reason = f"{reason}: pid {asleep[0].pid} ({asleep[0].comm}) sleeps in the kernel (state D)"
    awaited = f"pid {asleep[0].pid} to end"
    return Problem(Level.BLOCK, reason, "reboot this node", needs_person=True, awaits=awaited)


def _words(facts: StrayFacts, engine: Engine) -> str:
    """What a person needs to find it: pid, name, how many with it, user, container, ports, memory."""
    top = engine.top
    others = len(engine.members) - 1
    parts = [f"pid {top.pid} ({top.comm})" + (f" and {others} with it" if others else ""), f"user {engine.user}"]
    if engine.container_id:
        name = next((one.name for one in facts.containers if one.id == engine.container_id), "")
        parts.append(f"container {name or engine.container_id[:12]}")
    held = sorted(_ports_of(facts, engine))
    if held:
        parts.append(f"port {', '.join(str(port) for port in held)}")
    parts.append(size(sum(member.frees_bytes for member in engine.members)))
    if top.state == "D":
        parts.append("asleep in the kernel (state D)")
    return ", ".join(parts)


def _ports_of(facts: StrayFacts, engine: Engine) -> set[int]:
    pids = {member.pid for member in engine.members}
    return {use.port for use in facts.ports if use.pid in pids}


def _how_to_stop(facts: StrayFacts, engine: Engine) -> str:
    name = next((one.name for one in facts.containers if one.id == engine.container_id), "")
    return f"stop it first: docker stop {name}" if name else f"stop it first: kill {engine.top.pid}"


def _with_gpu(host: Host, table: ProcessTable, found: tuple[Engine, ...]) -> tuple[Engine, ...]:
    pids = {member.pid for engine in found for member in engine.members}
    extra = dict(gpu_memory.by_pid(host, [process for process in table if process.pid in pids]))
    return tuple(
        replace(
            engine,
            members=tuple(replace(one, frees_bytes=one.frees_bytes + extra.get(one.pid, 0)) for one in engine.members),
        )
        for engine in found
    )


def _zombies(table: ProcessTable) -> tuple[str, ...]:
    found = []
    for process in table:
        if process.dead and engines.is_worker(process):
            parent = table.get(process.parent)
            of = f"pid {process.parent} ({parent.comm if parent else '?'})"
            found.append(f"pid {process.pid} ({process.comm}) is a zombie that {of} has not asked for")
    return tuple(found)
