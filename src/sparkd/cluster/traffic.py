"""Traffic between two nodes for some seconds: how much TCP their ports carry, and how long a round trip takes.

One node listens on the report port, which is free while no agent runs; the other one connects and measures. A
connection begins with a challenge of who listens. Who connects answers with a kind, a nonce, a body and their signature
by the cluster key; who listens, with a body and its signature: each has proven the key, for this connection alone. What
follows is zeros, one byte there and back, or nothing while another program measures, for a bounded time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from queue import Empty, SimpleQueue
from socketserver import BaseRequestHandler, ThreadingTCPServer
from statistics import median, quantiles
from typing import Any

from msgspec import Struct

from sparkd.cluster import rdma_traffic
from sparkd.cluster.auth import new_nonce, sign_traffic, signatures_match
from sparkd.host.network import canonical

FACTS, TO_HERE, FROM_HERE, ECHO, RDMA, RESULT = "F", "T", "H", "E", "D", "R"
"""What a connection is for; the directions are those of who listens."""
STREAMS = 8
"""iperf3 with 8 reached what an interface of a ConnectX-7 carries (110 Gb/s, MTU 9000: NVIDIA's forum, 367853)."""
SECONDS = 3.0
"""For each direction."""
TRIPS, TRIPS_SECONDS = 500, 2.0
PROOF_SECONDS = 3.0
LONGEST_SECONDS = 60.0
"""A slow link takes so long to carry what the buffers hold."""
BODY_LIMIT = BLOCK_BYTES = 256 << 10
MOST_CONNECTIONS = 4 * STREAMS
_NONCE, _SIGNATURE, _LENGTH, _COUNT = 32, 64, 4, 8

Keys = Callable[[], tuple[bytes, ...]]


class RefusedError(OSError):
    """The other side did not prove the key, or did not accept this side's proof."""


class Measured(Struct, frozen=True):
    """Between two addresses, seen from the first node."""

    sent_gbps: float
    received_gbps: float
    round_trip_us: float
    """The median; below, the 99th percentile."""
    round_trip_99_us: float


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Raises TimeoutError, ConnectionError, OSError."""
    found = bytearray()
    while len(found) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        found += piece
    return bytes(found)


def _read_body(connection: socket.socket, deadline: float) -> bytes:
    length = int.from_bytes(_read(connection, _LENGTH, deadline), "big")
    if length > BODY_LIMIT:
        raise RefusedError(f"{length} bytes are too many")
    return _read(connection, length, deadline)


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH, "big") + body


class Listener(ThreadingTCPServer):
    """On one address. Connections beyond MOST_CONNECTIONS are closed."""

    daemon_threads, allow_reuse_address, request_queue_size = True, True, MOST_CONNECTIONS

    def __init__(
        self, address: str, port: int, keys: Keys, facts: bytes, hca: str, came: SimpleQueue[tuple[str, bytes]]
    ) -> None:
        """`facts`: what FACTS is answered with; `hca`: what RDMA is measured with, if with any.

        `came` takes each kind that was proven, with its body. Raises OSError.
        """
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.own = canonical(address)
        self._keys, self._replies, self._came = keys, {FACTS: facts, RDMA: hca.encode()}, came
        self._hca, self._room = hca, threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((address, port), BaseRequestHandler)

    def verify_request(self, *_: object) -> bool:
        return self._room.acquire(blocking=False)

    def handle_error(self, *_: object) -> None:
        """Any stranger can cause one, and who measures ends each connection: it sees the end, and nothing is logged."""

    def finish_request(self, request: Any, client_address: object) -> None:  # noqa: ARG002
        """One connection, to its end: in place of a handler's class."""
        connection: socket.socket = request
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kind, body = self._prove(connection)
            self._came.put((kind, body))
            deadline = time.monotonic() + LONGEST_SECONDS
            if kind == TO_HERE:
                connection.sendall(_count(connection, deadline).to_bytes(_COUNT, "big"))
            elif kind == FROM_HERE:
                _read(connection, 1, deadline)  # all streams begin at once
                _fill(connection, time.monotonic() + SECONDS * 2)
            elif kind == ECHO:
                while piece := _read(connection, 1, deadline):
                    connection.sendall(piece)
            elif kind == RDMA and self._hca:
                process = rdma_traffic.listen(self._hca)
                try:
                    _read(connection, 1, deadline)
                finally:
                    rdma_traffic.end(process)
        finally:
            self._room.release()

    def _prove(self, connection: socket.socket) -> tuple[str, bytes]:
        """Raises OSError where who connects proves no key."""
        challenge, deadline = new_nonce(), time.monotonic() + PROOF_SECONDS
        connection.settimeout(PROOF_SECONDS)
        connection.sendall(challenge.encode())
        head = _read(connection, 1 + _NONCE + _SIGNATURE, deadline).decode("latin-1")
        kind, nonce, found = head[0], head[1 : 1 + _NONCE], head[1 + _NONCE :]
        body = _read_body(connection, deadline)
        for key in self._keys():
            expected = sign_traffic(key, challenge, nonce, self.own, kind, body, listens=False)
            if signatures_match(expected, found):
                reply = self._replies.get(kind, b"")
                signature = sign_traffic(key, challenge, nonce, self.own, kind, reply, listens=True)
                connection.sendall(signature.encode() + _sized(reply))
                return kind, body
        raise RefusedError("no known key")


class Listening:
    """Listeners on several addresses, and what came to them."""

    def __init__(self) -> None:
        self._came: SimpleQueue[tuple[str, bytes]] = SimpleQueue()

    @contextmanager
    def on(self, addresses: Mapping[str, str], port: int, keys: Keys, facts: bytes) -> Iterator[int]:
        """For the time of the block; gives the port of the first one. `addresses`: with their RDMA devices, or none.

        Raises OSError.
        """
        listeners = list[Listener]()
        try:
            for address, hca in addresses.items():
                one = Listener(address, port, keys, facts, hca, self._came)
                listeners.append(one)
                threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
            yield listeners[0].server_address[1]
        finally:
            for one in listeners:
                one.shutdown()
                one.server_close()

    def wait_result(self, seconds: float) -> bytes | None:
        """The body of the RESULT; None where nothing that is proven came for so long."""
        with suppress(Empty):
            while True:
                kind, body = self._came.get(timeout=seconds)
                if kind == RESULT:
                    return body
        return None


class Measurer(Struct, frozen=True):
    """Between one address of this node and one of the other."""

    own: str
    to: str
    port: int
    keys: Keys

    def request(self, kind: str, body: bytes = b"") -> bytes:
        """What is answered. Raises RefusedError, OSError."""
        connection, reply = self._connect(kind, body)
        connection.close()
        return reply

    def measure(self) -> Measured:
        """Takes some 8 s. Raises OSError."""
        trips = self._trips()
        sent, received = self._rate(TO_HERE, self._send), self._rate(FROM_HERE, self._receive)
        return Measured(sent, received, median(trips) * 1e6, quantiles(trips, n=100)[-1] * 1e6)

    def measure_rdma(self, hca: str) -> float | None:
        """Gb/s to the other node; None where that has no device or program for it. Raises RdmaError, OSError."""
        connection, other_hca = self._connect(RDMA)
        with closing(connection):
            return rdma_traffic.measure(hca, self.to) if other_hca else None

    def measure_ceiling(self) -> float:
        """Gb/s: of this method where no cable takes part."""
        return self._rate(TO_HERE, self._send)

    def _connect(self, kind: str, body: bytes = b"") -> tuple[socket.socket, bytes]:
        """Raises RefusedError where no key of this node is accepted, or the other one proves none; OSError."""
        for key in self.keys():
            connection = socket.create_connection((self.to, self.port), PROOF_SECONDS, (self.own, 0))
            try:
                return connection, self._prove(connection, key, kind, body)
            except RefusedError as error:
                refused = error
                connection.close()
            except BaseException:
                connection.close()
                raise
        raise refused

    def _prove(self, connection: socket.socket, key: bytes, kind: str, body: bytes) -> bytes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline, nonce, to = time.monotonic() + PROOF_SECONDS, new_nonce(), canonical(self.to)
        challenge = _read(connection, _NONCE, deadline).decode("latin-1")
        signature = sign_traffic(key, challenge, nonce, to, kind, body, listens=False)
        try:
            connection.sendall((kind + nonce + signature).encode() + _sized(body))
            found = _read(connection, _SIGNATURE, deadline).decode("latin-1")
        except ConnectionError:
            raise RefusedError("it does not accept this node's cluster key") from None
        reply = _read_body(connection, deadline)
        if not signatures_match(sign_traffic(key, challenge, nonce, to, kind, reply, listens=True), found):
            raise RefusedError("it does not prove the cluster's key")
        return reply

    def _trips(self) -> list[float]:
        connection, _ = self._connect(ECHO)
        with closing(connection):
            trips, end = list[float](), time.monotonic() + TRIPS_SECONDS
            while len(trips) < TRIPS and (len(trips) < 2 or time.monotonic() < end):
                began = time.perf_counter()
                connection.sendall(b"\0")
                _read(connection, 1, time.monotonic() + PROOF_SECONDS)
                trips.append(time.perf_counter() - began)
            return trips

    def _rate(self, kind: str, carry: Callable[[socket.socket, float], int]) -> float:
        """Gb/s of all streams together."""
        streams = list[socket.socket]()
        try:
            for _ in range(STREAMS):
                streams.append(self._connect(kind)[0])
            began = time.monotonic()
            with ThreadPoolExecutor(STREAMS) as pool:
                carried = sum(pool.map(lambda one: carry(one, began + SECONDS), streams))
            return carried * 8 / 1e9 / (time.monotonic() - began)
        finally:
            for one in streams:
                one.close()

    @staticmethod
    def _send(connection: socket.socket, end: float) -> int:
        """Bytes that the other side has got."""
        _fill(connection, end)
        connection.shutdown(socket.SHUT_WR)
        return int.from_bytes(_read(connection, _COUNT, time.monotonic() + LONGEST_SECONDS), "big")

    @staticmethod
    def _receive(connection: socket.socket, end: float) -> int:
        connection.sendall(b"\0")
        return _count(connection, end)


def _fill(connection: socket.socket, end: float) -> None:
    """Zeros until then."""
    block = bytes(BLOCK_BYTES)
    connection.settimeout(LONGEST_SECONDS)
    while time.monotonic() < end:
        connection.sendall(block)


def _count(connection: socket.socket, end: float) -> int:
    """Bytes that come until then, or until the other side has no more."""
    block, found = bytearray(4 * BLOCK_BYTES), 0
    with suppress(TimeoutError):
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (count := connection.recv_into(block)):
                break
            found += count
    return found
