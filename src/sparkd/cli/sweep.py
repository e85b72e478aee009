"""`sparkd sweep`: stop the containers that a killed agent leaves running, and nothing else.

systemd runs it after every end of the unit (ExecStopPost=) with the invocation id of the agent that has just ended.
By hand it stops every container of sparkd's whose owner is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sparkd.host.docker import LABEL
from sparkd.lib.errors import ExitCode, LaunchError

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker import ContainerFacts
    from sparkd.host.processes import NodeOwner


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("head", "worker"), help="only containers of this role")


def run(args: argparse.Namespace) -> int:
    from sparkd.host import Host, docker
    from sparkd.lib.systemd import invocation_id

    host = Host()
    if not docker.running(host):
        # A query would start dockerd; the next preflight removes what is left.
        print("docker is not running: nothing swept", file=sys.stderr)
        return ExitCode.GOOD
    facts = host.docker()
    if facts.error:
        raise LaunchError(f"docker can't list its containers: {facts.error}", "systemctl status docker")
    # The owner is read after the containers: the agent of a listed container holds the lock already, or is gone.
    orphans = find_orphans(facts.containers, host.owner(), invocation_id(os.environ), args.role)
    return _end(host, orphans) if orphans else ExitCode.GOOD


def find_orphans(
    containers: tuple[ContainerFacts, ...], owner: NodeOwner | None, invocation: str, role: str | None
) -> tuple[ContainerFacts, ...]:
    """Containers of sparkd's whose owner is gone: those of `invocation`; where it is empty, of all but the owner."""
    if owner is not None and not owner.invocation:
        # The lock's holder is unknown: each container might be theirs.
        return ()
    return tuple(
        one
        for one in containers
        if one.ours
        and (role is None or one.label(f"{LABEL}role") == role)
        and (owner is None or one.invocation != owner.invocation)
        and (not invocation or one.invocation == invocation)
    )


def _end(host: Host, orphans: tuple[ContainerFacts, ...]) -> int:
    from sparkd.actions.dockerd import Containers
    from sparkd.actions.processes import end_orphan

    containers = Containers()
    code = ExitCode.GOOD
    for one in orphans:
        try:
            end_orphan(host, containers, one)
            print(f"stopped and removed container {one.name} ({one.id[:12]}): its agent is gone")
        except LaunchError as error:
            print(f"sparkd: {error}", file=sys.stderr)
            code = ExitCode.LAUNCH_FAILED
    return code
