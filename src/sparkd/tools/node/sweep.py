"""The end of containers whose agent is gone: which these are, and why one is left alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from sparkd.base.host import Host, docker
from sparkd.base.host.docker import LABEL, ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.units import OWN_UNITS
from sparkd.base.lib.errors import ExitCode, LaunchError
from sparkd.base.state.rank_record import RECORD_HINT, KnownRank, Whose, read_rank, whose

CRASHES = ("signal", "core-dump", "watchdog", "oom-kill")
"""Results of a service, by systemd.exec(5), after which the next agent may take its rank over."""
JOBS_SECONDS = 5.0
LEFT = "it serves; its agent is expected back, and ends it after `systemctl stop`. Without an agent it ends in a minute"


def is_left(host: Host, invocation: str, env: Mapping[str, str]) -> bool:
    """Whether the agent of `invocation` has crashed, and its rank is for the next one. Any doubt ends it.

    `env`: of ExecStopPost=.
    """
    known, result = read_rank(host), env.get("SERVICE_RESULT", "")
    failed = result == "exit-code" and env.get("EXIT_STATUS") == str(int(ExitCode.BUG))
    own = known.record is not None and known.record.invocation == invocation
    return own and known.stays and (result in CRASHES or failed) and _is_started_again()


def _is_started_again() -> bool:
    """Whether no stop of the agent is ordered, nor a restart, which is to end the rank too."""
    command = ("systemctl", "list-jobs", "--no-legend", "--plain", *OWN_UNITS)
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=JOBS_SECONDS, check=True).stdout
        jobs = [words for words in map(str.split, listed.splitlines()) if words and words[0].isdigit()]
        return all(words[2:3] in (["start"], ["reload"]) for words in jobs)
    return False


def sweep(host: Host, invocation: str, role: str | None, show: Callable[[str], None]) -> ExitCode:
    """As `find_orphans`. Raises LaunchError where it is unknown whose a container is, or docker gives no list."""
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
    orphans = find_orphans(facts.containers, owner, known, invocation, role)
    code = _end(host, orphans, show) if orphans else ExitCode.GOOD
    if not invocation:
        for one in facts.containers:
            if one.ours and _whose(one, owner, known) is Whose.LEFT:
                show(f"container {one.name} ({one.id[:12]}) is left alone: {LEFT}")
    unknown = [one for one in facts.containers if one.ours and whose(one, owner, known) is Whose.UNKNOWN]
    if unknown and known.error:
        raise LaunchError(f"{unknown[0].name} is left alone: {known.error}", RECORD_HINT)
    return code


def find_orphans(
    containers: tuple[ContainerFacts, ...], owner: NodeOwner | None, known: KnownRank, invocation: str, role: str | None
) -> tuple[ContainerFacts, ...]:
    """Those whose agent is gone: the agent of `invocation`; where it is empty, any but the owner, and of a rank that
    another agent is expected for.
    """
    ended = (Whose.ORPHAN, Whose.LEFT) if invocation else (Whose.ORPHAN,)
    return tuple(
        one
        for one in containers
        if one.ours
        and (role is None or one.label(f"{LABEL}role") == role)
        and _whose(one, owner, known) in ended
        and (not invocation or known.holder(one) == invocation)
    )


def _whose(one: ContainerFacts, owner: NodeOwner | None, known: KnownRank) -> Whose:
    """An owner may be the next agent, which has not taken the rank over yet: it does that, or ends it."""
    found = whose(one, owner, known)
    return Whose.LEFT if found is Whose.ORPHAN and known.stays and known.proves(one) else found


def _end(host: Host, orphans: tuple[ContainerFacts, ...], show: Callable[[str], None]) -> ExitCode:
    from sparkd.agent.actions.dockerd import Containers  # half a second, which an end that leaves nothing is spared
    from sparkd.agent.actions.processes import end_orphan

    containers = Containers()
    code = ExitCode.GOOD
    for one in orphans:
        try:
            end_orphan(host, containers, one)
            show(f"stopped and removed container {one.name} ({one.id[:12]}): its agent is gone")
        except LaunchError as error:
            print(f"sparkd: {error}", file=sys.stderr)
            code = ExitCode.LAUNCH_FAILED
    return code
