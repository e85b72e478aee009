"""What an agent listens on, and whom it reads: the other nodes on the fabric, people and monitors on loopback."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from sparkd.errors import BlockedError
from sparkd.host import Host
from sparkd.host.addresses import canonical
from sparkd.host.cluster_key import KeyRing
from sparkd.lib.event_loop import EventLoop
from sparkd.lib.http_connection import Limits
from sparkd.lib.http_server import HttpServer
from sparkd.lib.log import Events
from sparkd.lib.redact import Redactor
from sparkd.peers.peers import Peers
from sparkd.peers.reader import Source
from sparkd.pulse import Pulse
from sparkd.report import observers
from sparkd.report.exchange import Exchange
from sparkd.report.node_report import NodeReport, dump, redacted
from sparkd.report.reporter import Sink
from sparkd.roles import NodeContext
from sparkd.together import Together

HOLD_SECONDS = 5.0
HOLD_SHARE = 0.25
"""Of the silence that counts as loss: an answer may be held back for no longer, so that four tries fit into it."""


class Cluster(Struct, frozen=True):
    """`exchange` is what the other nodes read, from `server`; None where there are none."""

    together: Together
    exchange: Exchange | None = None
    sinks: tuple[Sink, ...] = ()
    server: HttpServer | None = None


def join(
    node: NodeContext,
    host: Host,
    pulse: Pulse,
    network: EventLoop,
    redact: Redactor,
    events: Events,
    owner_uid: int = 0,
) -> Cluster:
    """Begin to serve this node's report and to read the others'. `owner_uid`: whose the key file must be.

    Raises ConfigError (78) for a bad key file, BlockedError (10) where the port is taken.
    """
    settings = node.settings
    timeout_seconds = settings.supervise.peer_timeout_seconds
    if not node.peers:
        return Cluster(Together(Peers((), tuple, pulse.ring), pulse.submit, timeout_seconds))
    own, port = node.plan.node.address, settings.cluster.report_port
    keys = _keys(KeyRing(host.files, settings.cluster.key_file, owner_uid), events)
    hold_seconds = min(HOLD_SECONDS, HOLD_SHARE * timeout_seconds)
    exchange = Exchange(own, keys, hold_seconds)
    # Requests are not counted: a signature refuses one at no more cost than a count would, and whoever sends from a
    # node's address, as any user there can, must not use up what is its agent's.
    server = _server(own, port, exchange, Limits(requests_per_second=math.inf), node, events)
    server.start(network)
    sources = (Source(peer.rank, peer.address, port, own, hold_seconds) for peer in node.peers)
    peers = Peers(tuple(sources), keys, pulse.ring)
    peers.start(network)

    def to_peers(report: NodeReport) -> None:
        body = dump(replace(redacted(report, redact), peers=())).encode()
        network.call(exchange.publish, body)

    return Cluster(Together(peers, pulse.submit, timeout_seconds), exchange, (to_peers,), server)


def _keys(ring: KeyRing, events: Events) -> Callable[[], tuple[bytes, ...]]:
    """The keys as they are now; a file that went bad is told of, and the last good keys are used on."""
    told = ""

    def keys() -> tuple[bytes, ...]:
        nonlocal told
        found = ring.keys()
        if ring.trouble != told:
            told = ring.trouble
            if told:
                events.error(
                    "cluster.key.unusable",
                    reason=told,
                    hint="mend it before this unit restarts; the keys of before are in use",
                )
        return found

    return keys


def _server(
    own: str,
    port: int,
    exchange: Exchange,
    limits: Limits,
    node: NodeContext,
    events: Events,
) -> HttpServer:
    known = frozenset(canonical(peer.address) for peer in node.peers)

    def admits(source: str) -> bool:
        return canonical(source) in known

    def on_error(trouble: str) -> None:
        events.error("reports.server.failed", reason=trouble)

    try:
        return HttpServer(own, port, exchange.handle, limits, admits, on_error)
    except OSError as error:
        raise BlockedError(
            f"port {port} of {own}, where other nodes read this one's report, can't be had: {error.strerror}",
            f"who has it? ss -ltnp sport = :{port}",
        ) from None


def observe(
    address: tuple[str, int] | None, report: Callable[[], NodeReport], pulse: Pulse, network: EventLoop, events: Events
) -> None:
    """Serve people and monitors. Where that fails the journal says so, and no engine waits for it."""
    if address is None:
        return

    def on_error(trouble: str) -> None:
        events.warning("observers.server.failed", reason=trouble)

    try:
        HttpServer(*address, observers.handler(report, pulse.beat_age), on_error=on_error).start(network)
    except OSError as error:
        on_error(f"{address[0]} port {address[1]} can't be had: {error.strerror}")
