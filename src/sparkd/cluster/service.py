"""The agent's HTTP servers and peer readers.

Other nodes get its report and plan values on the fabric, for requests signed with the cluster key. People and monitors
have a server of their own on loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.cluster.auth import (
    CHALLENGE_HEADER,
    NONCE_HEADER,
    SIGNATURE_HEADER,
    KeyRing,
    sign_answer,
    sign_request,
    signatures_match,
)
from sparkd.cluster.client import PeerReader, Source
from sparkd.cluster.membership import NodeContext
from sparkd.host import Host
from sparkd.host.network import canonical
from sparkd.lib.errors import AwaitedError
from sparkd.lib.event_loop import EventLoop
from sparkd.lib.http_connection import Limits, Request, Response
from sparkd.lib.http_server import HttpServer
from sparkd.lib.log import Events
from sparkd.lib.text import Redactor
from sparkd.status import http_api
from sparkd.status.model import NodeReport, dump, redacted
from sparkd.status.publisher import Sink

HOLD_SECONDS = 5.0
HOLD_SHARE = 0.25
"""Of the peer timeout: the longest hold, so that four tries fit into the timeout."""
NONCE_LIMIT = 64


class PeerApi(Struct):
    """`handle` and `publish` run in the loop's thread; `publish_plan` may be called from any."""

    own_address: str
    keys: Callable[[], tuple[bytes, ...]]
    hold_seconds: float
    """How long an answer is held back from a reader that has the current report."""
    _report: bytes = b""
    _digest: str = ""
    _published: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next report comes."""
    _plan: bytes = b""

    def publish(self, report: bytes) -> None:
        """Serve this report from now on, and answer held requests."""
        if report != self._report:
            self._report = report
            self._digest = hashlib.sha256(report).hexdigest()
            self._published.set()
            self._published = asyncio.Event()

    def publish_plan(self, values: bytes) -> None:
        self._plan = values

    async def handle(self, request: Request) -> Response:
        nonce = request.headers.get(NONCE_HEADER.lower(), "")
        key = self._find_key(request, nonce) if 0 < len(nonce) <= NONCE_LIMIT else None
        if key is None:
            return Response(401, headers=((CHALLENGE_HEADER, request.challenge),))
        path, body = urlsplit(request.path), b""
        if path.path == "/report" and self._report:
            known = parse_qs(path.query).get("known", [""])[0]
            with suppress(TimeoutError):
                async with asyncio.timeout(self.hold_seconds):
                    while known == self._digest:
                        await self._published.wait()
            body = self._report
        elif path.path == "/plan":
            body = self._plan
        status = 200 if body else 404
        signature = sign_answer(key, nonce, self.own_address, request.path, status, body)
        date = formatdate(time.time(), usegmt=True)
        return Response(status, body, headers=((SIGNATURE_HEADER, signature), ("Date", date)))

    def _find_key(self, request: Request, nonce: str) -> bytes | None:
        """The key of the request's signature, any of the file's keys; None where it is signed with none."""
        found = request.headers.get(SIGNATURE_HEADER.lower(), "")
        for key in self.keys():
            expected = sign_request(key, request.challenge, nonce, self.own_address, request.path)
            if signatures_match(expected, found):
                return key
        return None


class Cluster(Struct, frozen=True):
    """`readers` by rank, in order. `publish_plan` gets values for the other nodes, to name differences."""

    readers: Mapping[int, PeerReader]
    publish_plan: Callable[[bytes], object]
    sinks: tuple[Sink, ...] = ()


def join_cluster(
    node: NodeContext,
    host: Host,
    wake: Callable[[], None],
    network: EventLoop,
    redact: Redactor,
    events: Events,
    owner_uid: int = 0,
) -> Cluster:
    """Start to serve this node's report and to read those of the others. `owner_uid`: the key file's required owner.

    Raises ConfigError (78) for a bad key file, AwaitedError where there is none, or the port is taken.
    """
    if not node.peers:
        return Cluster({}, lambda _: None)
    settings = node.settings
    own, port = node.plan.node.address, settings.cluster.report_port

    def on_bad_key(trouble: str) -> None:
        hint = "fix it before this unit restarts; the previous keys are in use"
        events.error("cluster.key.unusable", reason=trouble, hint=hint)

    keys = KeyRing(host.files, settings.cluster.key_file, owner_uid, on_bad_key).keys
    hold_seconds = min(HOLD_SECONDS, HOLD_SHARE * settings.supervise.peer_timeout_seconds)
    peer_api = PeerApi(own, keys, hold_seconds)
    _server(own, port, peer_api, node, events).start(network)
    sources = (Source(peer.rank, peer.address, port, own, hold_seconds) for peer in node.peers)
    readers = {source.rank: PeerReader(source, keys, wake) for source in sources}
    for reader in readers.values():
        network.spawn(reader.run())

    def to_peers(report: NodeReport) -> None:
        body = dump(replace(redacted(report, redact), peers=())).encode()
        network.call(peer_api.publish, body)

    return Cluster(readers, peer_api.publish_plan, (to_peers,))


def _server(own: str, port: int, peer_api: PeerApi, node: NodeContext, events: Events) -> HttpServer:
    known = frozenset(canonical(peer.address) for peer in node.peers)
    # No rate limit: checking a signature is as cheap as counting, and any user of a known node could use up the limit
    # of its agent.
    limits = Limits(requests_per_second=math.inf)
    try:
        return HttpServer(
            own,
            port,
            peer_api.handle,
            limits,
            lambda source: canonical(source) in known,
            lambda trouble: events.error("cluster.server.failed", reason=trouble),
        )
    except OSError as error:
        raise AwaitedError(
            f"port {port} of {own}, where other nodes read this one's report, can't be had: {error.strerror}",
            f"who has it? ss -ltnp sport = :{port}",
        ) from None


def start_status_server(
    address: tuple[str, int] | None,
    report: Callable[[], NodeReport],
    keepalive_age: Callable[[], float],
    network: EventLoop,
    events: Events,
) -> None:
    """For people and monitors. A failure is only logged: no engine depends on it."""
    if address is None:
        return

    def on_error(trouble: str) -> None:
        events.warning("status.server.failed", reason=trouble)

    try:
        HttpServer(*address, http_api.make_handler(report, keepalive_age), on_error=on_error).start(network)
    except OSError as error:
        on_error(f"{address[0]} port {address[1]} can't be had: {error.strerror}")
