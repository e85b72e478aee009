"""Requests the inventories of all other nodes, on the head. What compares them is loaded without a client."""

from __future__ import annotations

import asyncio

from sparkd.agent.cluster.client import PeerReader, Source, UnsignedError
from sparkd.agent.cluster.inventory import PATH, Inventory, parse, read_inventory
from sparkd.agent.cluster.inventory_comparison import Inventories
from sparkd.base.cluster.auth import KeyRing
from sparkd.base.cluster.membership import Peer, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.slow_document import ANSWER_SECONDS

TRIES = 3
"""A slow read times out, and the page cache serves the retry."""


def request_inventories(settings: Settings, host: Host) -> Inventories:
    """Takes seconds."""
    if not (peers := peers_of(settings, 0)):
        return Inventories(None, ())
    keys, port = KeyRing(host.files, settings.cluster.key_file).keys, settings.cluster.report_port
    own = settings.cluster.nodes[0]

    async def request(peer: Peer) -> Inventory | str:
        reader, reason = PeerReader(Source(*peer, port, own, 0, ANSWER_SECONDS + 2), keys, wake=lambda: None), ""
        for _ in range(TRIES):
            try:
                return parse(await reader.fetch(PATH))
            except (HttpError, UnsignedError, ValueError) as error:
                reason = str(error)
        return reason

    async def request_all() -> list[Inventory | str]:
        return await asyncio.gather(*map(request, peers))

    return Inventories(read_inventory(settings, host), list(zip(peers, asyncio.run(request_all()), strict=True)))
