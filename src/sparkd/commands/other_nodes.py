"""The other nodes that a person's command is for: those of the cluster, or those that are named."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode, SparkdError, UsageError

if TYPE_CHECKING:
    from sparkd.hands.peer import Peer
    from sparkd.host import Host
    from sparkd.settings import Settings

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        action="append",
        help="node to copy to, by address or by name in ssh's configuration, given for each one; all others of "
        "cluster.nodes by default",
    )
    parser.add_argument("--user", help="whom to log in as there; ssh's own choice by default")


def chosen(args: argparse.Namespace, settings: Settings, host: Host) -> tuple[Peer, ...]:
    """Raises UsageError where there are none."""
    from sparkd.hands.peer import Peer
    from sparkd.host.addresses import canonical

    if args.user is not None and not _USER.fullmatch(args.user):
        raise UsageError(f"{args.user!r} is no name of a user")
    for one in args.to or ():
        if not _HOST.fullmatch(one):
            raise UsageError(f"{one!r} is neither an address nor the name of a host")
    own = host.addresses()
    for one in args.to or ():
        with suppress(ValueError):
            if canonical(one) in own:
                raise UsageError(f"{one} is this node itself")
    addresses = args.to or [one for one in settings.cluster.nodes if canonical(one) not in own]
    if not addresses:
        raise UsageError("cluster.nodes names no other node", "name one: --to ADDRESS")
    return tuple(Peer(one, args.user or "") for one in dict.fromkeys(addresses))


def each(peers: Iterable[Peer], act: Callable[[Peer], None]) -> ExitCode:
    """One after the other; what fails on one is told, and the others still get theirs. 10 where any failed."""
    code = ExitCode.GOOD
    for peer in peers:
        try:
            act(peer)
        except SparkdError as error:
            print(f"sparkd: {error}", file=sys.stderr, flush=True)
            code = ExitCode.BLOCKED
    return code
