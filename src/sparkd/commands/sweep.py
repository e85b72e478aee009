"""`sparkd sweep`: what an agent that was killed leaves running is stopped, and nothing else.

systemd runs it after every end of the unit (ExecStopPost=) with the invocation id of the agent that has just ended.
By hand it stops every container of sparkd's whose owner is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.docker_facts import ContainerFacts


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("head", "worker"), help="only containers of this role")


def run(args: argparse.Namespace) -> int:
    from sparkd.host import Host, docker
    from sparkd.systemd import invocation_id

    host = Host()
    if not docker.running(host):
        # A dead dockerd can't be asked, and asking would start it; the next preflight clears what is left.
        print("docker is not running: nothing swept", file=sys.stderr)
        return ExitCode.GOOD
    orphans = find_orphans(host, invocation_id(os.environ), args.role)
    return _end(host, orphans) if orphans else ExitCode.GOOD


def find_orphans(host: Host, invocation: str, role: str | None) -> tuple[ContainerFacts, ...]:
    """Containers of sparkd's whose owner is gone: those of `invocation`; where it is empty, of all but the owner."""
    from sparkd.hands import LABEL

    owner = host.owner()
    alive = owner.invocation if owner is not None else None
    if alive == "":
        # Somebody holds the lock who can't be told: each container might be theirs.
        return ()
    return tuple(
        one
        for one in host.docker().containers
        if one.label(f"{LABEL}role")
        and (role is None or one.label(f"{LABEL}role") == role)
        and one.label(f"{LABEL}invocation") != alive
        and (not invocation or one.label(f"{LABEL}invocation") == invocation)
    )


def _end(host: Host, orphans: tuple[ContainerFacts, ...]) -> int:
    from sparkd.errors import LaunchError
    from sparkd.hands.container import Containers
    from sparkd.hands.orphans import end

    containers = Containers()
    code = ExitCode.GOOD
    for one in orphans:
        try:
            end(host, containers, one)
            print(f"stopped and removed container {one.name} ({one.id[:12]}): its agent is gone")
        except LaunchError as error:
            print(f"sparkd: {error}", file=sys.stderr)
            code = ExitCode.LAUNCH_FAILED
    return code
