"""Requests the inventories of all other nodes, on the head. The comparison is a module that needs no client."""

import asyncio

from sparkd.agent.cluster.client import SLOW_ANSWER_SECONDS, Source, UnsignedError, fetch
from sparkd.agent.cluster.inventory import CODEC, PATH, Inventory, read_inventory
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.membership import Peer, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.http_client import HttpError
from sparkd.tools.node.inventory_comparison import Inventories

TRIES = 3
"""Requests to one node: a slow read times out there, and the page cache speeds up the next one."""


def request_inventories(settings: Settings, host: Host) -> Inventories:
    """Read this node's inventory and request those of the others. Takes seconds.

    In place of one that no try got, there is the reason of the last.
    """
    if not (peers := peers_of(settings, 0)):
        return Inventories(None, ())
    keys, port = KeyRing(host.files, settings.cluster.key_file).keys, settings.cluster.report_port
    own_address = settings.cluster.nodes[0]

    async def request(peer: Peer) -> Inventory | str:
        source = Source(*peer, port, own_address, 0, SLOW_ANSWER_SECONDS)
        reason = ""
        for _ in range(TRIES):
            try:
                return CODEC.decode((await fetch(source, keys, PATH)).body)
            except (HttpError, UnsignedError, ValueError) as error:
                reason = str(error)
        return reason

    async def request_all() -> list[Inventory | str]:
        return await asyncio.gather(*map(request, peers))

    return Inventories(read_inventory(settings, host), list(zip(peers, asyncio.run(request_all()), strict=True)))
