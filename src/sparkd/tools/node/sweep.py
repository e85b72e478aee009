"""The end of containers whose agent is gone: which these are, and why one is left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from sparkd.base.host import Host, docker
from sparkd.base.host.docker import LABEL, ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.units import is_stop_ordered
from sparkd.base.lib.errors import ExitCode, LaunchError
from sparkd.base.state.rank_record import RECORD_HINT, KnownRank, Whose, read_rank, whose

CRASHES = ("signal", "core-dump", "watchdog", "oom-kill")
"""Results of a service, by systemd.exec(5), after which the next agent may take its rank over."""
LEFT = "it serves, and its agent is expected back; without one it ends in a minute: nothing is to be done"
RETRIED = tuple(str(int(code)) for code in (ExitCode.BUG, ExitCode.BLOCKED))
"""Exit statuses of an agent that has not ended its rank: a bug, and one that could not take it over yet."""


def is_left(host: Host, role: str | None, env: Mapping[str, str]) -> bool:
    """Whether the crashed agent's rank is left for its successor. When in doubt: no.

    `env`: the environment of ExecStopPost=.
    """
    known, outcome = read_rank(host), env.get("SERVICE_RESULT", "")
    failed = outcome == "exit-code" and env.get("EXIT_STATUS") in RETRIED
    own = known.record is not None and known.record.role == role
    return own and known.stays and (outcome in CRASHES or failed) and not is_stop_ordered()


def sweep(host: Host, invocation: str, role: str | None, show: Callable[[str], None]) -> ExitCode:
    """End the orphans. Raises LaunchError where it is unknown whose a container is, or docker gives no list."""
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
    known = read_rank(host)

    def held_as(holder: Whose) -> list[ContainerFacts]:
        return [listed for listed in facts.containers if listed.ours and whose(listed, owner, known) is holder]

    orphans = find_orphans(facts.containers, owner, known, invocation, role)
    code = _end(host, orphans, show) if orphans else ExitCode.GOOD
    if not invocation:
        for container in held_as(Whose.LEFT):
            show(f"container {container.name} ({container.id[:12]}) is left alone: {LEFT}")
    unknown = held_as(Whose.UNKNOWN)
    if unknown and known.error:
        raise LaunchError(f"{unknown[0].name} is left alone: {known.error}", RECORD_HINT)
    return code


def find_orphans(
    containers: tuple[ContainerFacts, ...], owner: NodeOwner | None, known: KnownRank, invocation: str, role: str | None
) -> tuple[ContainerFacts, ...]:
    """Containers whose agent is gone: the agent of `invocation`; where that is empty, any but the owner.

    A rank that the next agent is expected for is an orphan only after the end of an agent of its role.
    """

    def is_orphan(candidate: ContainerFacts) -> bool:
        if not candidate.ours or role not in (None, candidate.label(f"{LABEL}role")):
            return False
        holder = whose(candidate, owner, known)
        by_invocation = known.holder(candidate) == invocation
        if holder is Whose.LEFT:
            return bool(invocation) and (by_invocation or role is not None)
        return holder is Whose.ORPHAN and (not invocation or by_invocation)

    return tuple(filter(is_orphan, containers))


def _end(host: Host, orphans: tuple[ContainerFacts, ...], show: Callable[[str], None]) -> ExitCode:
    from sparkd.agent.actions.dockerd import Containers  # half a second, which an end that leaves nothing is spared
    from sparkd.agent.actions.processes import end_orphan

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
