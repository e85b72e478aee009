"""The agent's place on the fabric: the server from which other nodes read its report, and the readers of theirs."""

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.cluster import inventory, log_pages
from sparkd.agent.cluster.client import Source
from sparkd.agent.cluster.peer_api import PeerApi
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.base.cluster import auth, head_key
from sparkd.base.cluster.membership import Peer, peers_of
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.network import canonical
from sparkd.base.lib.errors import AwaitedError
from sparkd.base.lib.http_connection import Limits
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.log import Events
from sparkd.base.lib.slow_document import SlowDocument
from sparkd.base.plan.model import Node
from sparkd.base.status.model import PEER_LIMIT_BYTES, NodeReport, fit, without_figures
from sparkd.base.status.publisher import Published, Sink

HOLD_SHARE = 0.25
"""Share of the peer timeout: the longest hold, so that four tries fit into the timeout. It takes 5 s at most."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""`MainLoop.spawn`: runs a coroutine that never ends by itself."""


class Cluster(Struct, frozen=True):
    """`readers` by rank, in order. `publish(path, content)` serves a document to the other nodes."""

    readers: Mapping[int, PeerReader]
    publish: Callable[[str, bytes], object]
    sinks: tuple[Sink, ...] = ()


def join_cluster(
    node: Node,
    settings: Settings,
    host: Host,
    wake: Callable[[], None],
    spawn: Spawn,
    events: Events,
    known: tuple[bytes, ...] = (),
) -> Cluster:
    """Start to serve this node's report and to read those of the others.

    `known`: the keys of the cluster, where another thread has just read them. Raises ConfigError (78) for a bad key
    file, AwaitedError where there is none, or the port is taken.
    """
    peers = peers_of(settings, node.rank)
    if not peers:
        return Cluster({}, lambda _path, _body: None)
    own_address, port = node.address, settings.cluster.report_port
    keys = _open_key_ring(settings, host, known, events).latest
    head_keys = _open_head_keys(host, events).keys
    hold_seconds = min(5.0, HOLD_SHARE * settings.supervise.peer_timeout_seconds)
    documents = _make_slow_documents(settings, host, events)
    peer_api = PeerApi(own_address, keys, hold_seconds, slow=documents, head_keys=head_keys)
    spawn(_make_server(own_address, port, peer_api, peers, events).serve())
    sources = (Source(peer.rank, peer.address, port, own_address, hold_seconds) for peer in peers)
    readers = {source.rank: PeerReader(source, keys, wake) for source in sources}
    for reader in readers.values():
        spawn(reader.run())

    previous: NodeReport | None = None

    def publish_to_peers(published: Published) -> None:
        nonlocal previous
        report = replace(published.report, peers=())
        wake = previous is None or without_figures(report) != without_figures(previous)
        previous = report
        peer_api.publish(fit(report, PEER_LIMIT_BYTES)[1].encode(), wake=wake)

    return Cluster(readers, peer_api.publish_document, (publish_to_peers,))


def _open_key_ring(settings: Settings, host: Host, known: tuple[bytes, ...], events: Events) -> auth.KeyRing:
    path = settings.cluster.key_file

    def on_trouble(trouble: str) -> None:
        hint = "fix it before this unit restarts; the previous keys are in use"
        events.error("cluster.key.unusable", reason=trouble, hint=hint)

    def on_older(count: int) -> None:
        hint = f"once all nodes have the first key, on each: {auth.forget_command(path)}"
        events.warning("cluster.key.outdated", accepted=count, hint=hint)

    return auth.KeyRing(host.files, path, on_trouble, on_older, known=known)


def _open_head_keys(host: Host, events: Events) -> auth.KeyRing:
    def on_trouble(trouble: str) -> None:
        hint = f"sudo rm {head_key.PRIVATE}; sudo sparkd init --invite; then on each worker: sudo sparkd init --join"
        events.error("cluster.key.unusable", reason=trouble, hint=hint)

    return auth.KeyRing(host.files, head_key.PRIVATE, on_trouble, optional=True)


def _make_slow_documents(settings: Settings, host: Host, events: Events) -> dict[str, SlowDocument[bytes]]:
    def make_document(name: str, read: Callable[[str], bytes], fresh_seconds: float = 0.0) -> SlowDocument[bytes]:
        def read_or_log(query: str) -> bytes:
            """What `read` returns; empty where it fails, so that the client gets a signed refusal."""
            try:
                return read(query)
            except Exception as error:
                events.error("cluster.server.failed", reason=f"{name}: {type(error).__name__}: {error}")
                return b""

        return SlowDocument(name, read_or_log, fresh_seconds)

    def read_inventory(_query: str) -> bytes:
        return inventory.CODEC.encode(inventory.read_inventory(settings, host)).encode()

    return {
        inventory.PATH: make_document("inventory", read_inventory, inventory.FRESH_SECONDS),
        log_pages.PATH: make_document("log", partial(log_pages.answer, host.name())),
    }


def _make_server(own_address: str, port: int, peer_api: PeerApi, peers: tuple[Peer, ...], events: Events) -> HttpServer:
    peer_addresses = frozenset(canonical(peer.address) for peer in peers)
    # No rate limit: checking a signature is as cheap as counting, and any user of a known node could use up the limit
    # of its agent.
    limits = Limits(requests_per_second=math.inf)
    try:
        return HttpServer(
            own_address,
            port,
            peer_api.handle,
            limits,
            lambda source: canonical(source) in peer_addresses,
            lambda trouble: events.error("cluster.server.failed", reason=trouble),
        )
    except OSError as error:
        raise AwaitedError(
            f"port {port} of {own_address}, where other nodes read this one's report, can't be had: {error.strerror}",
            f"who has it? sudo ss -tanp sport = :{port}",
        ) from None
