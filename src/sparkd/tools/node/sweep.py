"""Orphans, the containers whose agent is gone: which these are, and their end. A rank may be left to the next agent."""

import sys
from collections.abc import Callable, Mapping

from sparkd.base.host import Host, docker
from sparkd.base.host.docker import LABEL, ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib.errors import ExitCode, LaunchError
from sparkd.base.lib.systemd import is_stop_ordered
from sparkd.base.state.container_owner import Whose, whose
from sparkd.base.state.rank_record import RECORD_HINT, KnownRank, read_rank

CRASHES = ("signal", "core-dump", "watchdog", "oom-kill")
"""Results of a service, as in systemd.exec(5), after which the next agent may take over the rank."""
LEFT = "it serves, and its agent is expected back; without one it ends in a minute: nothing is to be done"
RETRIED = tuple(str(int(code)) for code in (ExitCode.BUG, ExitCode.BLOCKED))
"""Exit statuses of an agent that leaves its rank running: after a bug, or where it could not take the rank over yet."""


def is_left(host: Host, role: str | None, env: Mapping[str, str]) -> bool:
    """Whether the crashed agent's rank is left for the next agent; not where that is in doubt.

    `env`: the environment of ExecStopPost=.
    """
    known_rank, service_result = read_rank(host), env.get("SERVICE_RESULT", "")
    is_retried = service_result == "exit-code" and env.get("EXIT_STATUS") in RETRIED
    is_own = known_rank.record is not None and known_rank.record.role == role
    return is_own and known_rank.stays and (service_result in CRASHES or is_retried) and not is_stop_ordered(OWN_UNITS)


def end_orphans(host: Host, invocation: str, role: str | None, show: Callable[[str], None]) -> ExitCode:
    """End the orphans; `invocation` and `role`: as in `find_orphans`.

    Raises LaunchError where it is unknown whose a container is, or docker gives no list.
    """
    if not docker.running(host):
        # A query would start dockerd; the next preflight removes what is left.
        print("docker is not running: nothing swept", file=sys.stderr)
        return ExitCode.GOOD
    facts = host.docker()
    if facts.error:
        raise LaunchError(f"docker can't list its containers: {facts.error}", "systemctl status docker")
    # The owner is read after the containers: the agent of a listed container holds the lock already, or is gone.
    try:
        owner = host.owner()
    except OSError as error:
        reason = f"nothing swept, whose the containers are is unknown: {error.strerror}"
        raise LaunchError(reason, "the next preflight removes what is left over") from None
    known_rank = read_rank(host)

    def list_by_holder(holder: Whose) -> list[ContainerFacts]:
        ours = (container for container in facts.containers if container.ours)
        return [container for container in ours if whose(container, owner, known_rank) is holder]

    orphans = find_orphans(facts.containers, owner, known_rank, invocation, role)
    code = _stop_containers(host, orphans, show) if orphans else ExitCode.GOOD
    if not invocation:
        for container in list_by_holder(Whose.LEFT):
            show(f"container {container.name} ({container.id[:12]}) is left alone: {LEFT}")
    unknown_containers = list_by_holder(Whose.UNKNOWN)
    if unknown_containers and known_rank.error:
        raise LaunchError(f"{unknown_containers[0].name} is left alone: {known_rank.error}", RECORD_HINT)
    return code


def find_orphans(
    containers: tuple[ContainerFacts, ...],
    owner: NodeOwner | None,
    known_rank: KnownRank,
    invocation: str,
    role: str | None,
) -> tuple[ContainerFacts, ...]:
    """Containers whose agent is gone. With an `invocation` only those of that agent, with a `role` only those of it.

    `invocation` names an agent that has ended. A rank that is left for the next agent is no orphan without it; with it,
    the rank is one if that agent had it, or if a `role` is given.
    """

    def is_orphan(container: ContainerFacts) -> bool:
        if not container.ours or role not in (None, container.label(f"{LABEL}role")):
            return False
        holder = whose(container, owner, known_rank)
        by_invocation = known_rank.holder(container) == invocation
        if holder is Whose.LEFT:
            return bool(invocation) and (by_invocation or role is not None)
        return holder is Whose.ORPHAN and (not invocation or by_invocation)

    return tuple(filter(is_orphan, containers))


def _stop_containers(host: Host, orphans: tuple[ContainerFacts, ...], show: Callable[[str], None]) -> ExitCode:
    from sparkd.agent.actions.dockerd import Containers  # takes half a second, which is saved without orphans
    from sparkd.agent.actions.orphans import end_orphan

    containers = Containers()
    code = ExitCode.GOOD
    for orphan in orphans:
        try:
            end_orphan(host, containers, orphan)
            show(f"stopped and removed container {orphan.name} ({orphan.id[:12]}): its agent is gone")
        except LaunchError as error:
            print(f"sparkd: {error}", file=sys.stderr)
            code = ExitCode.LAUNCH_FAILED
    return code
