"""Joining a cluster, on the head: it waits for nodes on which its code is typed, and gives each the cluster's key.

A node sends two GET requests on one connection, to a port that is open only meanwhile:

    /join                     answer: the head's public key of this invitation, and the connection's challenge
    /join?key=...&sealed=...  the node's public key, and a sealed Hello; answer: a sealed Welcome with keys and nodes

The node writes these to its disk, and reports that by both requests again, with its inventory. Until then the same
address may get the keys again, since an answer may be lost, or a disk full.

A wrong code is answered late, and after ten of them the invitation ends.
"""

import asyncio
import queue
import sys
import syslog
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from sparkd import __version__
from sparkd.agent.cluster import inventory
from sparkd.agent.cluster.inventory import Inventory
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.host.network import canonical
from sparkd.base.lib import log
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.event_loop import loop_thread
from sparkd.base.lib.http_connection import Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.text import sanitize
from sparkd.tools.setup.join_code import Ephemeral, JoinCode

PORT = 29512
MOST_WRONG = 10
WRONG_SECONDS = 2.0
"""The wait before a wrong code is answered."""
GRACE_SECONDS = 0.5
"""Time for an answer to leave before the caller may close the invitation."""
MOST_INVENTORY_BYTES = 20_000
LIMITS = Limits(connections=32, per_source=4, header_bytes=60_000, requests_per_second=4, burst=20)
NAME_LIMIT = 64
AGAIN = "for a new code, on the head: the same `sudo sparkd init` command again"


class Guest(NamedTuple):
    """A node that has joined: the keys are on its disk."""

    address: str
    hostname: str
    version: str
    known: bool
    """Whether it was one of the cluster's nodes before."""
    inventory: Inventory | None = None
    """None where it is too long, or of another version."""


@contextmanager
def explain_interrupt(joined: Sequence[Guest], again: str) -> Iterator[None]:
    """Print what stays where the wait for nodes is interrupted. `again`: the command that makes a new code."""
    try:
        yield
    except KeyboardInterrupt:
        names = ", ".join(f"{sanitize(guest.hostname)} ({guest.address})" for guest in joined) or "none"
        print(f"\ninterrupted; nodes that have joined and stay: {names}", file=sys.stderr)
        print(f"{again}   # makes a new code", file=sys.stderr)
        raise


class Refusal(NamedTuple):
    """A request that was refused."""

    address: str
    reason: str


class Offer(Struct, frozen=True):
    """The answer to the first request."""

    key: str
    """The head's public key of this invitation, in hex."""
    challenge: str


class Hello(Struct, frozen=True):
    """A node's message to the head, sealed."""

    hostname: str
    version: str
    written: bool = False
    """Whether the node has the answer on its disk."""
    inventory: bytes = b""


class Welcome(Struct, frozen=True):
    """The head's answer to a Hello, sealed."""

    version: str
    keys: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    head_keys: tuple[str, ...] = ()
    """Public halves of the head's own key."""
    refused: str = ""
    """Why a node with the code gets no keys; empty where it gets them."""


class Invitation:
    """Lets up to `limit` nodes join, once each. Listens on the head's fabric address at once, answers within a `with`.

    `nodes`: those of the cluster so far, `most_nodes` their number at most, for `limit_reason`. `keys`: the cluster's.
    `head_keys`: public halves of the head's. `again`: the hint for a new code. `events` go to the journal by default.
    Raises BlockedError where the port is taken.
    """

    def __init__(
        self,
        address: str,
        nodes: tuple[str, ...],
        keys: tuple[bytes, ...],
        limit: int = MAX_NODES - 1,
        *,
        head_keys: tuple[bytes, ...],
        most_nodes: int = MAX_NODES,
        limit_reason: str = "",
        again: str = AGAIN,
        port: int = PORT,
        valid_seconds: float = 600.0,
        wrong_seconds: float = WRONG_SECONDS,
        events: log.Events | None = None,
    ) -> None:
        self._code = JoinCode.new(address)
        self._ephemeral = Ephemeral()
        self._keys, self._limit, self._most_nodes = tuple(key.hex() for key in keys), limit, most_nodes
        self._limit_reason, self._again = limit_reason, again
        self._head_keys = tuple(key.hex() for key in head_keys)
        self._nodes = list(dict.fromkeys((self._code.head, *map(canonical, nodes))))
        self._sent: dict[str, bool] = {}
        """Addresses that got the keys, each with whether it was one of the cluster's nodes before."""
        self._joined: set[str] = set()
        self._wrong_codes, self._wrong_seconds = 0, wrong_seconds
        self._deadline = time.monotonic() + valid_seconds
        self._news: queue.SimpleQueue[Guest | Refusal] = queue.SimpleQueue()
        self._events = events or log.events(syslog.syslog, Redaction())
        self._serving = ExitStack()
        try:
            self._server = HttpServer(address, port, self._handle, LIMITS)
        except OSError as error:
            reason = f"port {port} of {address}, where other nodes join, can't be had: {error.strerror}"
            raise BlockedError(reason, f"who has it? sudo ss -ltnp sport = :{port}") from None
        self.port = self._server.port

    @property
    def code(self) -> str:
        return str(self._code)

    def __enter__(self) -> Self:
        loop = self._serving.enter_context(loop_thread())
        loop.call_soon_threadsafe(lambda: loop.spawn(self._server.serve()))
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()

    def end_in(self, seconds: float) -> None:
        """End the invitation in so many seconds at the latest."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def guests(self) -> Iterator[Guest | Refusal]:
        """Yield each node that joins or is refused, until all have joined or the time is over.

        Raises BlockedError after MOST_WRONG wrong codes.
        """
        joined_count = 0
        while joined_count < self._limit:
            try:
                news = self._news.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                return
            joined_count += isinstance(news, Guest)
            yield news
            if self._wrong_codes >= MOST_WRONG and self._news.empty():
                reason = f"{self._wrong_codes} wrong codes, the last one from {news.address}"
                raise BlockedError(f"{reason}: this code is not valid any more", self._again)

    async def _handle(self, request: Request) -> Response:
        target = urlsplit(request.path)
        if target.path != "/join":
            return Response(404)
        address = canonical(request.source)
        # A node that has got the keys still has a place, until so many nodes have joined.
        is_full = len(self._joined if address in self._sent else self._sent) >= self._limit
        if self._wrong_codes >= MOST_WRONG or is_full or time.monotonic() > self._deadline:
            return Response(410)
        if not target.query:
            return Response(200, msgspec.json.encode(Offer(self._ephemeral.public.hex(), request.challenge)))
        fields = parse_qs(target.query)
        try:
            theirs, sealed = (bytes.fromhex(fields[name][0]) for name in ("key", "sealed"))
            from_node, to_node = self._ephemeral.seals(theirs, self._code, address, request.challenge, head=True)
        except (KeyError, ValueError):
            return Response(400)
        try:
            hello = from_node.open(sealed, Hello)
        except ValueError:
            return await self._refuse_code(address)
        return Response(200, to_node.close(self._welcome(address, hello)))

    async def _refuse_code(self, address: str) -> Response:
        """Answer a wrong code, after the wait for it."""
        self._wrong_codes += 1
        self._record_refusal(address, "wrong code", count=self._wrong_codes)
        await asyncio.sleep(self._wrong_seconds)
        return Response(401)

    def _record_refusal(self, address: str, reason: str, **fields: int) -> None:
        self._events.warning("cluster.join.refused", source=address, reason=reason, **fields)
        self._news.put(Refusal(address, reason))

    def _welcome(self, address: str, hello: Hello) -> Welcome:
        """Give the keys to a node, or let it join where it has them on its disk, or refuse it."""
        is_known = self._sent.get(address, address in self._nodes)
        refusal = ""
        if address in self._joined:
            refusal = f"{address} has joined by this code already"
        elif address == self._code.head:
            refusal = f"{address} is the head itself"
        elif hello.written and address not in self._sent:
            refusal = f"{address} has got no key by this code"
        elif not is_known and address not in self._nodes and len(self._nodes) >= self._most_nodes:
            remedy = "one that is gone is to leave cluster.nodes on the head first"
            reason = f"the cluster has {len(self._nodes)} nodes already: {remedy}"
            refusal = "; ".join(filter(None, (reason, self._limit_reason)))
        if refusal:
            self._record_refusal(address, refusal)
            return Welcome(__version__, refused=refusal)
        guest = Guest(address, sanitize(hello.hostname, NAME_LIMIT), sanitize(hello.version, NAME_LIMIT), is_known)
        if hello.written:
            self._joined.add(address)
            guest = guest._replace(inventory=_parse_inventory(hello.inventory))
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._news.put, guest)
            return Welcome(__version__)
        self._sent[address] = is_known
        self._nodes += [] if address in self._nodes else [address]
        self._events.info(
            "cluster.node.joined", address=address, hostname=guest.hostname, version=guest.version, known=is_known
        )
        return Welcome(__version__, self._keys, tuple(self._nodes), self._head_keys)


def _parse_inventory(body: bytes) -> Inventory | None:
    with suppress(ValueError):
        return inventory.CODEC.decode(body) if len(body) <= MOST_INVENTORY_BYTES else None
    return None
