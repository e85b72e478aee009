"""The other nodes for commands that copy: their choice, the turn of each one, and the room for the copy."""

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.disks import Room
from sparkd.base.host.network import canonical
from sparkd.base.lib.errors import BlockedError, ExitCode, SparkdError, UsageError
from sparkd.base.lib.text import size
from sparkd.tools.models.ssh import LOGIN, PeerRoom, SshHost

SPARE_BYTES = 1 << 30
"""Free space that stays on a disk after a copy."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")


def choose_peers(targets: Sequence[str], user: str | None, settings: Settings, host: Host) -> tuple[SshHost, ...]:
    """The named nodes, or by default the other nodes of the cluster. Raises UsageError where there are none."""
    if user is not None and not LOGIN.fullmatch(user):
        raise UsageError(f"{user!r} is no name of a user")
    own_addresses = host.addresses()
    for address in targets:
        if not _HOST.fullmatch(address):
            raise UsageError(f"{address!r} is neither an address nor the name of a host")
        with suppress(ValueError):
            if canonical(address) in own_addresses:
                raise UsageError(f"{address} is this node itself")
    addresses = targets or [node for node in settings.cluster.nodes if canonical(node) not in own_addresses]
    if not addresses:
        raise UsageError("cluster.nodes names no other node", "name one: --to ADDRESS")
    return tuple(SshHost(address, user or "") for address in dict.fromkeys(addresses))


def run_on_each(peers: Iterable[SshHost], act: Callable[[SshHost], None]) -> ExitCode:
    """Act on one peer after the other. A failure is printed, and the next peer follows. Returns 10 if any failed."""
    code = ExitCode.GOOD
    for peer in peers:
        try:
            act(peer)
        except SparkdError as error:
            print(error.lines, file=sys.stderr, flush=True)
            code = ExitCode.BLOCKED
    return code


def require_room(room: Room | PeerRoom, need_bytes: int, purpose: str, remedy: str, peer: SshHost | None) -> None:
    """Raises BlockedError where less than `need_bytes` and SPARE_BYTES are free.

    `purpose` says in the message what the space is for, `remedy` ends the hint. `peer`: None for this node.
    """
    if room.free_bytes < need_bytes + SPARE_BYTES:
        where, there = (f"{peer.address}: ", " there") if peer else ("", "")
        free, needed = size(room.free_bytes), size(need_bytes + SPARE_BYTES)
        hint = f"make room{there}: df -h {shlex.quote(room.mount)}{remedy}"
        raise BlockedError(f"{where}{free} free on {room.mount}, {needed} needed{purpose}", hint)
