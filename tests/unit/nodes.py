"""Other nodes as tests need them: their reports, what is known of them, and their side of the wire on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from tests.unit.clock import unstalled

from sparkd.agent.cluster.client import Source
from sparkd.agent.cluster.peer_api import PeerApi
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.base.lib.event_loop import EventLoop, loop_thread
from sparkd.base.lib.http_connection import Handler, Limits
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, Phase, dump

T = TypeVar("T")

KEY, NEW_KEY, OTHER_KEY = b"k" * 32, b"n" * 32, b"o" * 32
HOLD_SECONDS = 0.3
PATIENCE_SECONDS = 10.0


def report(rank: int = 1, /, **changes: object) -> NodeReport:
    """The report of a node that stands by, changed in some fields."""
    first = NodeReport(
        node=f"spark{rank + 1}",
        role="worker" if rank else "head",
        rank=rank,
        phase=Phase.AWAITING_PEERS,
        since="2026-01-01T00:00:00.000+00:00",
        epoch="",
        incarnation=f"incarnation-{rank}",
        version="1",
    )
    return replace(first, **changes)


def status(contact: Contact = Contact.ANSWERS, answer: NodeReport | None = None, why: str = "") -> PeerStatus:
    """What is known of the node whose report it is."""
    known = answer or report()
    return PeerStatus(f"10.0.0.{known.rank + 1}", known.rank, contact, known.since, known, why)


def until(true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> float:
    """Seconds until it became true; fails where it does not."""
    began = unstalled()
    while not true():
        assert unstalled() - began < seconds, "it never came true"
        time.sleep(0.002)
    return unstalled() - began


def least(took: Callable[[], float], enough: float) -> float:
    """The shortest of up to five tries, which end with one under `enough`: a busy machine delays some, a defect all."""
    best = float("inf")
    for _ in range(5):
        if (best := min(best, took())) < enough:
            break
    return best


@dataclass
class Node:
    """What one node serves to the others."""

    peer_api: PeerApi
    server: HttpServer
    loop: Network

    def publish(self, sent: NodeReport) -> None:
        self.publish_bytes(dump(sent).encode())

    def publish_bytes(self, body: bytes) -> None:
        self.loop.call(self.peer_api.publish, body)

    @property
    def port(self) -> int:
        return self.server.port


PLENTY = Limits(requests_per_second=1e6, burst=10**6)


class Network:
    """A loop in a thread of its own; the test's thread watches what runs in it, and calls these."""

    def __init__(self, loop: EventLoop, close: Callable[[], None]) -> None:
        self._loop = loop
        self.close = close

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.call(self._loop.spawn, work)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(partial(function, *args))


@contextmanager
def network(broken: Callable[[BaseException], object] = lambda _: None) -> Iterator[Network]:
    with ExitStack() as running:
        yield Network(running.enter_context(loop_thread(broken)), running.close)


@contextmanager
def node(
    address: str,
    *,
    port: int = 0,
    keys: Sequence[bytes] = (KEY,),
    claims: str = "",
    limits: Limits = PLENTY,
    admits: Callable[[str], bool] = lambda _: True,
    hold_seconds: float = HOLD_SECONDS,
    head_keys: Sequence[bytes] = (),
) -> Iterator[Node]:
    """A node that answers on `address`, and signs as `claims` where that is another one."""
    peer_api = PeerApi(claims or address, lambda: tuple(keys), hold_seconds, head_keys=lambda: tuple(head_keys))
    server = HttpServer(address, port, peer_api.handle, limits, admits)
    with network() as loop:
        loop.spawn(server.serve())
        yield Node(peer_api, server, loop)


@contextmanager
def served(address: str, handle: Handler) -> Iterator[HttpServer]:
    server = HttpServer(address, 0, handle, PLENTY)
    with network() as loop:
        loop.spawn(server.serve())
        yield server


@contextmanager
def reading(
    address: str,
    port: int,
    *,
    rank: int = 1,
    keys: Sequence[bytes] = (KEY,),
    own_address: str = "127.0.0.1",
    hold_seconds: float = HOLD_SECONDS,
    answer_seconds: float = 0.6,
    wake: Callable[[], None] = lambda: None,
) -> Iterator[PeerReader]:
    source = Source(rank, address, port, own_address, hold_seconds, answer_seconds)
    reader = PeerReader(source, lambda: tuple(keys), wake)
    with network() as loop:
        loop.spawn(reader.run())
        yield reader


def heard(reader: PeerReader) -> NodeReport:
    """The report, once it has come."""
    until(lambda: reader.status.contact is Contact.ANSWERS)
    assert reader.status.report is not None
    return reader.status.report


def contact_of(reader: PeerReader, contact: Contact) -> str:
    """What the reader reports with this contact, once it has it."""
    until(lambda: reader.status.contact is contact)
    return reader.status.said
