"""The agent's HTTP servers and peer readers.

On the fabric, other nodes get its report, its plan's values and a head's configuration, for requests signed with the
cluster key. People and monitors have a server of their own on loopback.
"""

import asyncio
import hashlib
import math
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.cluster import inventory, log_pages
from sparkd.agent.cluster.client import PeerReader, Source
from sparkd.agent.status import http_api
from sparkd.agent.status.http_api import TokenFile
from sparkd.agent.status.kept import PageHistory
from sparkd.base.cluster import auth, head_key
from sparkd.base.cluster.membership import Peer, peers_of
from sparkd.base.config import Settings
from sparkd.base.config.settings import Observe
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.network import canonical
from sparkd.base.host.sockets import find_peer
from sparkd.base.lib.errors import AwaitedError
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_connection import Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.log import Events
from sparkd.base.lib.slow_document import BUSY_STATUS, SlowDocument
from sparkd.base.plan.model import Node
from sparkd.base.state import shared_config
from sparkd.base.status.model import PEER_LIMIT_BYTES, NodeReport, fit, without_figures
from sparkd.base.status.publisher import Published, Sink

HOLD_SECONDS = 5.0
HOLD_SHARE = 0.25
"""Share of the peer timeout: the longest hold, so that four tries fit into the timeout."""
LISTEN_AGAIN_SECONDS = 10.0
"""Pause before the next try, where the address is not there yet, or another program has the port."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""`MainLoop.spawn`: runs a coroutine that never ends by itself."""


class PeerApi(Struct):
    """Answers other nodes. Used by the thread of its loop."""

    own_address: str
    keys: Callable[[], tuple[bytes, ...]]
    hold_seconds: float
    """How long an answer is held back from a reader that has the current report."""
    _report: bytes = b""
    _digest: str = ""
    _published: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next report comes."""
    documents: Mapping[str, bytes] = {}
    """Bodies of the other documents, by path."""
    slow: dict[str, SlowDocument[bytes]] = field(default_factory=dict)
    """Documents that are made when they are requested, by path."""
    head_keys: Callable[[], tuple[bytes, ...]] = tuple
    """The head's private keys, which sign what its workers run; none on other nodes."""

    def publish(self, report: bytes, *, wake: bool = True) -> None:
        """Serve this report from now on, and answer held requests; without `wake`, only when their hold ends."""
        if report != self._report:
            self._report = report
            self._digest = hashlib.sha256(report).hexdigest()
            if wake:
                self._published.set()
                self._published = asyncio.Event()

    def publish_document(self, path: str, body: bytes) -> None:
        self.documents = {**self.documents, path: body}

    async def handle(self, request: Request) -> Response:
        nonce = request.headers.get(auth.NONCE_HEADER.lower(), "")
        key = self._find_key(request, nonce) if 0 < len(nonce) <= 64 else None
        if key is None:
            return Response(401, headers=((auth.CHALLENGE_HEADER, request.challenge),))
        path = urlsplit(request.path)
        body: bytes | None = b""
        if path.path == "/report" and self._report:
            known_digest = parse_qs(path.query).get("known", [""])[0]
            with suppress(TimeoutError):
                async with asyncio.timeout(self.hold_seconds):
                    while known_digest == self._digest:
                        await self._published.wait()
            body = self._report
        elif path.path in self.slow:
            body = await self.slow[path.path].get(path.query)
        else:
            body = self.documents.get(path.path, b"")
        status = BUSY_STATUS if body is None else 200 if body else 404
        body = body or b""
        signature = auth.sign_answer(key, nonce, self.own_address, request.path, status, body)
        date = formatdate(time.time(), usegmt=True)
        headers = {auth.SIGNATURE_HEADER: signature, "Date": date}
        if path.path == shared_config.PATH:
            with suppress(BlockingIOError):  # no thread now: the worker requests it again
                # Reads the keys, and the first time a library, from the disk, which may hang.
                signed = await run_in_thread("head-key", lambda: head_key.sign(self.head_keys(), signature))
                headers |= {head_key.HEADER: signed} if signed else {}
        return Response(status, body, headers=tuple(headers.items()))

    def _find_key(self, request: Request, nonce: str) -> bytes | None:
        """The key of the request's signature, any of the file's keys; None where it is signed with none."""
        received = request.headers.get(auth.SIGNATURE_HEADER.lower(), "")
        for key in self.keys():
            expected = auth.sign_request(key, request.challenge, nonce, self.own_address, request.path)
            if auth.signatures_match(expected, received):
                return key
        return None


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
    owner_uid: int = 0,
    known: tuple[bytes, ...] = (),
) -> Cluster:
    """Start to serve this node's report and to read those of the others.

    `owner_uid`: the key file's required owner. `known`: the keys in it, where another thread has just read them.

    Raises ConfigError (78) for a bad key file, AwaitedError where there is none, or the port is taken.
    """
    peers = peers_of(settings, node.rank)
    if not peers:
        return Cluster({}, lambda _path, _body: None)
    own_address, port = node.address, settings.cluster.report_port

    def on_bad_key(hint: str, trouble: str) -> None:
        events.error("cluster.key.unusable", reason=trouble, hint=hint)

    def on_older_keys(count: int) -> None:
        hint = f"once all nodes have the first key, on each: {auth.forget_command(settings.cluster.key_file)}"
        events.warning("cluster.key.outdated", accepted=count, hint=hint)

    restart = partial(on_bad_key, "fix it before this unit restarts; the previous keys are in use")
    path = settings.cluster.key_file
    keys = auth.KeyRing(host.files, path, owner_uid, restart, on_older_keys, known=known).latest
    renew = partial(
        on_bad_key,
        f"sudo rm {head_key.PRIVATE}; sudo sparkd init --invite; then on each worker: sudo sparkd init --join",
    )
    head_keys = auth.KeyRing(host.files, head_key.PRIVATE, owner_uid, renew, optional=True).keys
    hold_seconds = min(HOLD_SECONDS, HOLD_SHARE * settings.supervise.peer_timeout_seconds)

    def answer_or_log(name: str, look: Callable[[str], bytes], query: str) -> bytes:
        """The answer of `look`; empty where it fails, so that the client gets a signed refusal."""
        try:
            return look(query)
        except Exception as error:
            events.error("cluster.server.failed", reason=f"{name}: {type(error).__name__}: {error}")
            return b""

    read_node_inventory = partial(
        answer_or_log, "inventory", lambda _: inventory.dump(inventory.read_inventory(settings, host))
    )
    read_node_log = partial(answer_or_log, "log", partial(log_pages.answer, host.name()))
    slow_documents = {
        inventory.PATH: SlowDocument("inventory", read_node_inventory, inventory.FRESH_SECONDS),
        log_pages.PATH: SlowDocument("log", read_node_log),
    }
    peer_api = PeerApi(own_address, keys, hold_seconds, slow=slow_documents, head_keys=head_keys)
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
            f"who has it? sudo ss -ltnp sport = :{port}",
        ) from None


def start_status_server(
    observe: Observe,
    files: Files,
    published: Callable[[], Published],
    keepalive_age: Callable[[], float],
    spawn: Spawn,
    events: Events,
    kept: PageHistory,
) -> None:
    """Start the server of people and monitors.

    A failure is only logged, and the address tried again, since no engine depends on it.
    """
    if observe.address is None:
        return
    host, port = observe.address

    def on_error(trouble: str) -> None:
        events.warning("status.server.failed", reason=trouble)

    def on_bad_token(trouble: str, hint: str) -> None:
        events.warning("status.token.unusable", reason=trouble, hint=hint)

    token = TokenFile(files, observe.token_file, on_bad_token) if observe.token_file else None
    handle = http_api.make_handler(published, keepalive_age, token.admits if token else None, kept)

    async def serve() -> None:
        reported = ""
        if token is not None:
            await token.admits("")  # what is wrong with its file is reported before the first request
        while True:
            try:
                server = HttpServer(host, port, handle, on_error=on_error, find_user=_find_user)
            except OSError as error:
                trouble = f"{host} port {port} can't be had: {error.strerror}"
                if trouble != reported:
                    on_error(trouble)
                reported = trouble
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            else:
                await server.serve()

    spawn(serve())
    spawn(kept.follow(published))


def _find_user(connection: socket.socket) -> str:
    """The local user who made a connection, since all users have the same address. Empty where it is not known."""
    with suppress(OSError):
        if (peer := find_peer(connection)) is not None:
            return f"uid {peer.uid}"
    return ""
