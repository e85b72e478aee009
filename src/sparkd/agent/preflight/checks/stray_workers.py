"""Strays: processes and containers of engines whose starter is gone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, unknown, verdict, warn
from sparkd.agent.preflight.checks.docker import docker_unknown
from sparkd.agent.preflight.engine_processes import (
    ENGINE_PREFIX,
    Engine,
    Leader,
    PortUse,
    find_engines,
    gpu_memory_by_pid,
    is_worker,
    lasting_ports,
    pids_of,
)
from sparkd.agent.preflight.fixes import EndProcess, Identity, RemoveContainer, identity, stop_by_hand
from sparkd.base.host import Host
from sparkd.base.host.owner import FIND_HOLDER, UNNAMED, NodeOwner
from sparkd.base.host.processes import ProcessTable
from sparkd.base.lib.errors import Action
from sparkd.base.lib.text import size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.state.rank_record import RECORD_HINT, Whose, read_rank, whose

FIX_HINT = "once nothing else blocks, a start ends it, as does: sudo sparkd preflight"
MOST_ZOMBIES, MOST_USERS = 16, 3
"""How many are named: a user can have thousands."""


class Container(Struct, frozen=True):
    """A container that has processes of engines in it, or our label on it."""

    id: str
    name: str
    ours: bool
    invocation: str
    running: bool
    whose: Whose


class StrayFacts(Struct, frozen=True):
    engines: tuple[Engine, ...]
    containers: tuple[Container, ...]
    docker_known: bool
    docker_error: str
    """Why a running dockerd could not be read; empty where it could, or where none runs."""
    owner: NodeOwner | None
    rank_container: str
    """The recorded rank's, whose agent is gone; empty where that is not known."""
    rank_error: str
    """Why the record of the rank could not be read."""
    ports: tuple[PortUse, ...]
    harmless: tuple[str, ...]
    """Zombies, and processes that have no more of an engine than its name."""
    scanned: int


class StrayWorkers(Check[StrayFacts], frozen=True):
    tried: frozenset[Identity] = frozenset()
    """Identities of the fixes that were applied."""
    rendezvous: int = 0
    """cluster.master_port."""
    id = "stray-workers"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)
    fixes = ("end-process", "remove-container")

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> StrayWorkers:
        return cls(rendezvous=inputs.settings.cluster.master_port)

    def probe(self, host: Host) -> StrayFacts:
        table = host.processes()
        engines, unproven = find_engines(host, table)
        pids = pids_of(engines)
        extra = gpu_memory_by_pid(host, [process for process in table if process.pid in pids]) if pids else {}
        inside = {engine.container_id for engine in engines}
        docker, owner, known = host.docker(), host.owner(), read_rank(host)
        containers = (
            Container(facts.id, facts.name, facts.ours, facts.invocation, facts.running, whose(facts, owner, known))
            for facts in docker.containers
            if facts.ours or facts.id in inside
        )
        return StrayFacts(
            engines=tuple(engine.with_memory(extra) for engine in engines),
            containers=tuple(containers),
            docker_known=docker.known,
            docker_error=docker.error,
            owner=owner,
            rank_container=known.left_by(owner),
            rank_error=known.error,
            ports=lasting_ports(host, table, pids),
            harmless=(*islice(_zombies(table), MOST_ZOMBIES), *_names(host, unproven)),
            scanned=len(table.processes),
        )

    def judge(self, facts: StrayFacts) -> Verdict:
        ours = {container.id: container for container in facts.containers if container.ours}
        problems = [self._container(facts, container) for container in ours.values()]
        for engine in facts.engines:
            if engine.container_id in ours or engine.leader is Leader.ENGINE:
                continue  # named with its container, or with the main process that it belongs to
            problems.append(self._engine(facts, engine))
        problems += map(warn, facts.harmless)
        if facts.docker_error:
            problems.append(docker_unknown(f"docker can't list its containers: {facts.docker_error}"))
        away = "" if facts.docker_known else "; docker is away, so containers were not checked"
        return verdict(problems, f"none among {facts.scanned} processes{away}")

    def _container(self, facts: StrayFacts, container: Container) -> Verdict:
        inside = [engine for engine in facts.engines if engine.container_id == container.id]
        held = sum(member.frees_bytes for engine in inside for member in engine.members)
        what = f"container {container.name} ({container.id[:12]})"
        owner = facts.owner
        if owner is not None and not owner.invocation:
            return unknown(f"{what}: whether its agent is {UNNAMED}, is unknown", FIND_HOLDER)
        if container.whose is Whose.UNKNOWN and facts.rank_error:
            return unknown(f"{what}: whose it is, is unknown: {facts.rank_error}", RECORD_HINT)
        if container.whose is Whose.UNKNOWN:
            hint = f"if nobody needs it: sudo docker rm --force {quote(container.name)}"
            return unknown(f"{what} has the label of this node's rank, and is not what was started as that", hint)
        if container.whose is Whose.LEFT:
            hint = "nothing is to be done: the next agent takes it over; without one it ends in a minute"
            return block(f"{what} serves, and its agent has just crashed", hint)
        if owner is not None and container.whose is Whose.OWNERS:
            reason = f"{what} is the rank of the agent that owns this node: pid {owner.pid} ({owner.command})"
            return block(reason, owner.hint)
        state = f"still runs and holds {size(held)}" if container.running else "is left over"
        fix = RemoveContainer(container.id, container.name, frees_bytes=held)
        if identity(fix) in self.tried:
            return _stuck_container(inside, f"{what} of an agent that is gone {state} and can't be removed")
        return block(f"{what} of an agent that is gone {state}", FIX_HINT, fixes=(fix,))

    def _engine(self, facts: StrayFacts, engine: Engine) -> Verdict:
        if engine.container_id and not facts.docker_known:
            reason = f"{_words(facts, engine)}: docker can't identify its container"
            return unknown(reason, "sudo systemctl start docker", awaits="docker")
        # A `vllm serve` is its engine's leader even when adopted: one started over ssh with nohup always is.
        alone = engine.leader is Leader.ITSELF and not self._is_abandoned(facts, engine)
        name = _container_name(facts, engine)
        if not name and _is_left(facts, engine):
            return self._stray(facts, engine)  # its `vllm serve` too: docker has removed the container
        how = f"sudo docker stop {quote(name)}" if name else stop_by_hand(engine.top.pid, engine.service_stop)
        offers = () if name else (_ends(engine),)
        if engine.serves or not engine.adopted or alone:
            return block(f"a living engine: {_words(facts, engine)}", f"stop it first: {how}", offers=offers)
        if engine.leader is Leader.OTHER:
            reason = f"{_words(facts, engine)}: its group's leader lives but is no engine, so it may be orphaned or not"
            return unknown(reason, f"if nobody needs it: {how}", offers=offers)
        if engine.of_user:
            return block(f"an orphaned engine: {_words(facts, engine)}", f"if nobody needs it: {how}", offers=offers)
        return self._stray(facts, engine)

    def _is_abandoned(self, facts: StrayFacts, engine: Engine) -> bool:
        """Whether nothing is above a group's own leader, and nobody can send it a request.

        A service's or a container's process may have been started like that. Ranks listen at the rendezvous, and for
        each other on ports that the kernel assigns; another port may be for requests.
        """
        pids = pids_of((engine,))
        listens = {use.port for use in facts.ports if use.pid in pids} - {self.rendezvous}
        started = engine.service_stop or engine.container_id or not engine.top.comm.startswith(ENGINE_PREFIX)
        return engine.of_init and not started and not listens

    def _stray(self, facts: StrayFacts, engine: Engine) -> Verdict:
        fixes = _ends(engine)
        stuck = [member for member, fix in zip(engine.members, fixes, strict=True) if identity(fix) in self.tried]
        asleep = [member for member in stuck if member.state == "D"]
        if asleep:
            names = ", ".join(f"pid {member.pid} ({member.comm})" for member in asleep)
            reason = f"{names} sleeps in the kernel (state D) and can't be ended"
            # A driver that gives memory back may hold it for a while: it is waited for first.
            return _reboot(reason, f"{names} to end")
        if stuck:
            reason = f"an orphaned engine does not end: {_words(facts, engine)}"
            return block(reason, f"look at: cat /proc/{stuck[0].pid}/stack")
        return block(f"an orphaned engine: {_words(facts, engine)}", FIX_HINT, fixes=fixes)


def _is_left(facts: StrayFacts, engine: Engine) -> bool:
    """Whether it is the recorded rank's, whose agent is gone."""
    return bool(engine.container_id) and engine.container_id == facts.rank_container


def _ends(engine: Engine) -> tuple[EndProcess, ...]:
    return tuple(
        EndProcess(member.pid, member.start_time, member.comm, member.frees_bytes) for member in engine.members
    )


def _stuck_container(inside: list[Engine], reason: str) -> Verdict:
    asleep = [member for engine in inside for member in engine.members if member.state == "D"]
    if not asleep:
        return block(reason, "look at: systemctl status docker")
    reason = f"{reason}: pid {asleep[0].pid} ({asleep[0].comm}) sleeps in the kernel (state D)"
    return _reboot(reason, f"pid {asleep[0].pid} to end")


def _reboot(reason: str, awaits: str) -> Verdict:
    return block(reason, "reboot this node", needs_person=True, action=Action.REBOOT, awaits=awaits)


def _words(facts: StrayFacts, engine: Engine) -> str:
    """Pid, name, count of its processes, user, container, ports, memory."""
    top, others = engine.top, len(engine.members) - 1
    pids = pids_of((engine,))
    ports = sorted({use.port for use in facts.ports if use.pid in pids})
    parts = (
        f"pid {top.pid} ({top.comm})" + (f" and {others} with it" if others else ""),
        f"user {engine.user}",
        f"container {_container_name(facts, engine) or engine.container_id[:12]}" if engine.container_id else "",
        f"port {', '.join(map(str, ports))}" if ports else "",
        size(sum(member.frees_bytes for member in engine.members)),
        "asleep in the kernel (state D)" if top.state == "D" else "",
    )
    return ", ".join(part for part in parts if part)


def _container_name(facts: StrayFacts, engine: Engine) -> str:
    return next((container.name for container in facts.containers if container.id == engine.container_id), "")


def _names(host: Host, uids: dict[int, int]) -> Iterator[str]:
    """One line on the processes whose names alone are an engine's. `uids`: by pid."""
    if uids:
        users = ", ".join(host.user(uid) for uid in islice(dict.fromkeys(uids.values()), MOST_USERS))
        what = "has the name of an engine's process and nothing else of one, and is left alone"
        yield f"pid {next(iter(uids))} {what}; of this kind are {len(uids)}, user {users}"


def _zombies(table: ProcessTable) -> Iterator[str]:
    for process in table:
        if process.dead and is_worker(process):
            parent = table.get(process.parent)
            starter = f"pid {process.parent} ({parent.comm if parent else '?'})"
            yield f"pid {process.pid} ({process.comm}) is a zombie that {starter} has not reaped"
