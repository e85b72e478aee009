"""Strays: processes and containers of engines whose starter is gone, and engines that are in the launch's way."""

from collections.abc import Iterator
from itertools import islice
from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, unknown, warn
from sparkd.agent.preflight.checks.docker import docker_unknown
from sparkd.agent.preflight.engine_processes import (
    ENGINE_PREFIX,
    Engine,
    Leader,
    find_engines,
    gpu_memory_by_pid,
    is_worker,
    pids_of,
)
from sparkd.agent.preflight.fixes import EndProcess, Identity, RemoveContainer, by_start, identity, stop_by_hand
from sparkd.agent.preflight.port_uses import PortUse, lasting_ports
from sparkd.base.host import Host
from sparkd.base.host.owner import FIND_HOLDER, UNNAMED, NodeOwner
from sparkd.base.host.processes import ProcessTable
from sparkd.base.lib.errors import Action
from sparkd.base.lib.text import size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.rank_record import RECORD_HINT, read_rank

FIX_HINT = by_start("ends it")
MOST_ZOMBIES, MOST_USERS = 16, 3
"""How many zombies, and users, are named: a user can have thousands of processes."""


class EngineContainer(Struct, frozen=True):
    """A container that has processes of engines in it, or sparkd's label."""

    id: str
    name: str
    ours: bool
    """Whether sparkd created it."""
    invocation: str
    """Systemd's id of the run that created it: evidence for people only."""
    running: bool
    whose: Whose
    """Meaningful for sparkd's own alone."""


class StrayFacts(Struct, frozen=True):
    engines: tuple[Engine, ...]
    containers: tuple[EngineContainer, ...]
    docker_known: bool
    docker_error: str
    """Why a running dockerd could not be read; empty where it could, or where none runs."""
    owner: NodeOwner | None
    """The process that holds this node's lock; None where none does."""
    rank_container: str
    """The container of the recorded rank, if its agent is known to be gone; else empty."""
    rank_error: str
    """Why the record of the rank could not be read; empty where it could."""
    ports: tuple[PortUse, ...]
    """Ports that the engines listen on, except those that the kernel assigns."""
    harmless: tuple[str, ...]
    """Sentences on zombies, and on processes that only have the name of an engine's."""
    scanned: int
    """Number of processes."""


class StrayWorkers(Check[StrayFacts], frozen=True):
    tried: frozenset[Identity] = frozenset()
    rendezvous: int = 0
    """The port cluster.master_port."""
    id = "stray-workers"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)
    fixes = ("end-process", "remove-container")

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> "StrayWorkers":
        return cls(inputs.tried, inputs.settings.cluster.master_port)

    def probe(self, host: Host) -> StrayFacts:
        table = host.processes()
        engines, unproven = find_engines(host, table)
        pids = pids_of(engines)
        gpu_bytes = gpu_memory_by_pid(host, [process for process in table if process.pid in pids]) if pids else {}
        container_ids = {engine.container_id for engine in engines}
        docker, owner, record = host.docker(), host.owner(), read_rank(host)
        containers = (
            EngineContainer(
                id=container.id,
                name=container.name,
                ours=container.ours,
                invocation=container.invocation,
                running=container.running,
                whose=whose(container, owner, record),
            )
            for container in docker.containers
            if container.ours or container.id in container_ids
        )
        return StrayFacts(
            engines=tuple(engine.with_memory(gpu_bytes) for engine in engines),
            containers=tuple(containers),
            docker_known=docker.known,
            docker_error=docker.error,
            owner=owner,
            rank_container=record.left_by(owner),
            rank_error=record.error,
            ports=lasting_ports(host, table, pids),
            harmless=(*islice(_describe_zombies(table), MOST_ZOMBIES), *_describe_unproven(host, unproven)),
            scanned=len(table.processes),
        )

    def judge(self, facts: StrayFacts) -> Verdict:
        docker_note = "" if facts.docker_known else "; docker is away, so containers were not checked"
        return combine_verdicts(self._find_problems(facts), f"none among {facts.scanned} processes{docker_note}")

    def _find_problems(self, facts: StrayFacts) -> Iterator[Verdict]:
        ours = {container.id: container for container in facts.containers if container.ours}
        for container in ours.values():
            yield self._judge_container(facts, container)
        for engine in facts.engines:
            # Others are reported with their container, or with their main process.
            if engine.container_id not in ours and engine.leader is not Leader.ENGINE:
                yield self._judge_engine(facts, engine)
        yield from map(warn, facts.harmless)
        if facts.docker_error:
            yield docker_unknown(f"docker can't list its containers: {facts.docker_error}")

    def _judge_container(self, facts: StrayFacts, container: EngineContainer) -> Verdict:
        engines = [engine for engine in facts.engines if engine.container_id == container.id]
        held_bytes = sum(member.frees_bytes for engine in engines for member in engine.members)
        description = f"container {container.name} ({container.id[:12]})"
        owner = facts.owner
        if owner is not None and not owner.invocation:
            return unknown(f"{description}: whether its agent is {UNNAMED}, is unknown", FIND_HOLDER)
        if container.whose is Whose.UNKNOWN and facts.rank_error:
            return unknown(f"{description}: whose it is, is unknown: {facts.rank_error}", RECORD_HINT)
        if container.whose is Whose.UNKNOWN:
            reason = f"{description} has the label of this node's rank, and is not what was started as that"
            return unknown(reason, f"if nobody needs it: sudo docker rm --force {quote(container.name)}")
        if container.whose is Whose.LEFT:
            hint = "nothing is to be done: the next agent takes it over; without one it ends in a minute"
            return block(f"{description} serves, and its agent has just crashed", hint)
        if owner is not None and container.whose is Whose.OWNERS:
            reason = f"{description} is the rank of the agent that owns this node: pid {owner.pid} ({owner.command})"
            return block(reason, owner.hint)
        condition = f"still runs and holds {size(held_bytes)}" if container.running else "is left over"
        reason = f"{description} of an agent that is gone {condition}"
        fix = RemoveContainer(container.id, container.name, frees_bytes=held_bytes)
        if identity(fix) in self.tried:
            return _judge_stuck_container(engines, f"{reason} and can't be removed")
        return block(reason, FIX_HINT, fixes=(fix,))

    def _may_be_wanted(self, facts: StrayFacts, engine: Engine) -> bool:
        if engine.serves or not engine.adopted:
            return True
        # Adoption proves nothing of the leader of its own group, such as one that nohup has started over ssh.
        return engine.leader is Leader.ITSELF and not self._is_abandoned(facts, engine)

    def _judge_engine(self, facts: StrayFacts, engine: Engine) -> Verdict:
        """Judge an engine outside of sparkd's containers. A fix may only end one that is proven to be a stray."""
        description = _describe_engine(facts, engine)
        if engine.container_id and not facts.docker_known:
            reason = f"{description}: docker can't identify its container"
            if facts.docker_error:
                return docker_unknown(f"{reason}: {facts.docker_error}")
            return unknown(reason, "sudo systemctl start docker", awaits="docker")
        container_name = _find_container_name(facts, engine)
        if not container_name and engine.container_id and engine.container_id == facts.rank_container:
            return self._judge_stray(facts, engine)  # also where it serves: docker has removed the container
        by_hand = stop_by_hand(engine.top.pid, engine.service_stop)
        command = f"sudo docker stop {quote(container_name)}" if container_name else by_hand
        offers = () if container_name else (_build_fixes(engine),)
        if self._may_be_wanted(facts, engine):
            return block(f"a living engine: {description}", f"stop it first: {command}", offers=offers)
        if engine.leader is Leader.OTHER:
            reason = f"{description}: its group's leader lives but is no engine, so it may be orphaned or not"
            return unknown(reason, f"if nobody needs it: {command}", offers=offers)
        if engine.of_user:
            return block(f"an orphaned engine: {description}", f"if nobody needs it: {command}", offers=offers)
        return self._judge_stray(facts, engine)

    def _is_abandoned(self, facts: StrayFacts, engine: Engine) -> bool:
        """Whether an engine that leads its own group is a child of PID 1, and nobody can send it a request.

        In a service or a container that may be intended. Ranks listen at the rendezvous, and for each other on ports
        that the kernel assigns; any other port may be for requests.
        """
        pids = pids_of((engine,))
        other_ports = {use.port for use in facts.ports if use.pid in pids} - {self.rendezvous}
        may_be_intended = engine.service_stop or engine.container_id or not engine.top.comm.startswith(ENGINE_PREFIX)
        return engine.of_init and not may_be_intended and not other_ports

    def _judge_stray(self, facts: StrayFacts, engine: Engine) -> Verdict:
        """Let fixes end the engine; where some were applied, report what has survived them."""
        fixes = _build_fixes(engine)
        survivors = [member for member, fix in zip(engine.members, fixes, strict=True) if identity(fix) in self.tried]
        asleep = [member for member in survivors if member.state == "D"]
        if asleep:
            names = ", ".join(f"pid {member.pid} ({member.comm})" for member in asleep)
            reason = f"{names} sleeps in the kernel (state D) and can't be ended"
            # A driver that gives memory back may hold the process for a while, so that preflight waits for it first.
            return _block_until_reboot(reason, f"{names} to end")
        if survivors:
            reason = f"an orphaned engine does not end: {_describe_engine(facts, engine)}"
            return block(reason, f"look at: sudo cat /proc/{survivors[0].pid}/stack")
        return block(f"an orphaned engine: {_describe_engine(facts, engine)}", FIX_HINT, fixes, offers=(fixes,))


def _build_fixes(engine: Engine) -> tuple[EndProcess, ...]:
    return tuple(
        EndProcess(member.pid, member.start_time, member.comm, member.frees_bytes) for member in engine.members
    )


def _judge_stuck_container(engines: list[Engine], reason: str) -> Verdict:
    asleep = [member for engine in engines for member in engine.members if member.state == "D"]
    if not asleep:
        return block(reason, "look at: systemctl status docker", awaits="docker to remove it")
    reason = f"{reason}: pid {asleep[0].pid} ({asleep[0].comm}) sleeps in the kernel (state D)"
    return _block_until_reboot(reason, f"pid {asleep[0].pid} to end")


def _block_until_reboot(reason: str, awaits: str) -> Verdict:
    hint = "reboot this node: sudo systemctl reboot"
    return block(reason, hint, needs_person=True, action=Action.REBOOT, awaits=awaits)


def _describe_engine(facts: StrayFacts, engine: Engine) -> str:
    """Pid, name, count of processes, user, container, ports and memory, in words."""
    top, other_count = engine.top, len(engine.members) - 1
    pids = pids_of((engine,))
    ports = sorted({use.port for use in facts.ports if use.pid in pids})
    parts = (
        f"pid {top.pid} ({top.comm})" + (f" and {other_count} with it" if other_count else ""),
        f"user {engine.user}",
        f"container {_find_container_name(facts, engine) or engine.container_id[:12]}" if engine.container_id else "",
        f"port {', '.join(map(str, ports))}" if ports else "",
        size(sum(member.frees_bytes for member in engine.members)),
        "asleep in the kernel (state D)" if top.state == "D" else "",
    )
    return ", ".join(part for part in parts if part)


def _find_container_name(facts: StrayFacts, engine: Engine) -> str:
    return next((container.name for container in facts.containers if container.id == engine.container_id), "")


def _describe_unproven(host: Host, uids: dict[int, int]) -> Iterator[str]:
    """A sentence on the processes that only have the name of an engine's. `uids`: their users, by pid."""
    if uids:
        users = ", ".join(host.user(uid) for uid in islice(dict.fromkeys(uids.values()), MOST_USERS))
        sentence = f"pid {next(iter(uids))} has the name of an engine's process and nothing else of one"
        yield f"{sentence}, and is left alone; of this kind are {len(uids)}, user {users}"


def _describe_zombies(table: ProcessTable) -> Iterator[str]:
    for process in table:
        if process.dead and is_worker(process):
            parent = table.get(process.parent)
            parent_text = f"pid {process.parent} ({parent.comm if parent else '?'})"
            yield f"pid {process.pid} ({process.comm}) is a zombie that {parent_text} has not reaped"
