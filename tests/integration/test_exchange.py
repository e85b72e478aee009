"""The port that nodes read each other on, as an agent opens it, under load from other clients."""

import contextlib
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, context, joined, machine, settings
from tests.unit.limits import peak_bytes
from tests.unit.nodes import KEY, OTHER_KEY, heard, reading, report, until
from tests.unit.wire import http, message, passed_on

from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.agent.cluster.service import Cluster
from sparkd.base.cluster.auth import new_nonce, sign_request
from sparkd.base.lib.errors import AwaitedError
from sparkd.base.lib.http_connection import Limits
from sparkd.base.status.model import NodeReport
from sparkd.base.status.publisher import make_public

OWN, PEER, OTHER_PEER, STRANGER = "127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.9"
HOLD_SECONDS = 2.5
"""A quarter of the shortest silence that may count as loss."""
NEWS_SECONDS = 1.0
LATE_SECONDS = 10.0
"""Some tries to connect. Of a source at its limit the oldest connection without an answer goes first, and on a busy
machine more than a limit's worth may come while a reader signs its request."""


class Target:
    """A worker of three nodes, and the two others that read it."""

    def __init__(self, cluster: Cluster, port: int, readers: tuple[PeerReader, PeerReader]) -> None:
        self.port = port
        self.readers = readers
        self._sink = cluster.sinks[0]
        self._news = 0

    def publish(self, sent: NodeReport) -> None:
        self._sink(make_public(sent))

    def news_come(self, seconds: float = NEWS_SECONDS) -> None:
        """To all of the nodes that read it, in time."""
        self._news += 1
        message = f"news {self._news}"
        self.publish(report(message=message))
        until(lambda: all(_message(reader) == message for reader in self.readers), seconds)

    def connect(self, source: str) -> socket.socket:
        return socket.create_connection((OWN, self.port), 5, (source, 0))

    def get(self, path: str) -> bytes:
        with self.connect(PEER) as sock:
            sock.sendall(request(path, challenge_of(sock)))
            return message(sock)

    def send(self, data: bytes, source: str = PEER) -> bytes:
        return passed_on(data, OWN, self.port, source)


def _message(reader: PeerReader) -> str:
    known = reader.status.report
    return known.message if known else ""


@pytest.fixture
def target(tree: Tree, port: int) -> Iterator[Target]:
    host = machine(tree, 1)
    node = context(settings(addresses(3), port, peer_timeout_seconds=10), host)
    with (
        joined(node, host) as cluster,
        reading(OWN, port, own_address=PEER, hold_seconds=HOLD_SECONDS) as first,
        reading(OWN, port, own_address=OTHER_PEER, hold_seconds=HOLD_SECONDS) as second,
    ):
        target = Target(cluster, port, (first, second))
        target.publish(report())
        until(lambda: all(reader.status.living for reader in target.readers))
        yield target


def request(
    path: str, challenge: str = "", *, key: bytes = KEY, to: str = OWN, nonce: str = "", signed_path: str = ""
) -> bytes:
    nonce = nonce or new_nonce()
    signature = sign_request(key, challenge, nonce, to, signed_path or path)
    lines = (f"GET {path} HTTP/1.1", "Host: a", f"Sparkd-Nonce: {nonce}", f"Sparkd-Signature: {signature}", "", "")
    return "\r\n".join(lines).encode()


def challenge_of(sock: socket.socket) -> str:
    """Of a connection, by its refusal of a request that nobody has signed."""
    sock.sendall(b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n")
    challenge = re.search(rb"(?i)\r\nwww-authenticate: ([0-9a-f]{32})\r\n", message(sock))
    assert challenge is not None
    return challenge[1].decode()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /report HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /report HTTP/1.1\r\nHost: a\r\nSparkd-Nonce: 1\r\nSparkd-Signature:\r\n\r\n",
        b"GET /report HTTP/1.1\r\nHost: a\r\nSparkd-Nonce: 1\r\nSparkd-Signature: \xff\r\n\r\n",
        b"GET /plan HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
        partial(request, "/report", key=OTHER_KEY),
        partial(request, "/report", to=OTHER_PEER),
        partial(request, "/plan", signed_path="/report"),
        partial(request, "/report?known=x", signed_path="/report"),
        partial(request, "/report", nonce="n" * 65),
        request("/report", "0" * 32),
    ],
    ids=["none", "empty", "bytes", "plan", "nothing", "key", "address", "path", "query", "nonce", "challenge"],
)
def test_a_request_that_is_not_signed_gets_401_and_learns_nothing(
    target: Target, data: bytes | Callable[[str], bytes]
) -> None:
    with target.connect(PEER) as sock:
        challenge = challenge_of(sock)
        sock.sendall(data if isinstance(data, bytes) else data(challenge))
        head, _, body = message(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert body == b""
    assert b"signature" not in head.lower()
    assert b"sparkd" not in head.lower()


def test_a_stranger_gets_401_and_no_challenge(target: Target) -> None:
    answer = target.send(request("/report"), STRANGER)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate" not in answer.lower()
    assert target.get("/report").startswith(b"HTTP/1.1 200 ")


def test_a_request_that_was_recorded_is_worthless_on_another_connection_and_for_another_page(target: Target) -> None:
    with target.connect(PEER) as first, target.connect(PEER) as second:
        recorded = request("/report", challenge_of(first))
        first.sendall(recorded)
        assert message(first).startswith(b"HTTP/1.1 200 ")
        challenge_of(second)
        second.sendall(recorded)
        assert message(second).startswith(b"HTTP/1.1 401 ")
        for page in (b"/plan", b"/report?known=x"):
            first.sendall(recorded.replace(b"/report", page))
            assert message(first).startswith(b"HTTP/1.1 401 ")


def test_a_page_that_is_not_there_is_signed_too(target: Target) -> None:
    for page in ("/plan", "/nothing", "/"):
        answer = target.get(page)
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert b"Sparkd-Signature: " in answer


@pytest.mark.parametrize(
    "payload",
    [
        b"POST /report HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 1_000_000,
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /report HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
        b"\0" * 1_000_000,
        http(b"x" * 1000),
    ],
    ids=["body", "line", "headers", "zeros", "an answer"],
)
@pytest.mark.parametrize("source", [PEER, STRANGER])
def test_data_that_is_too_large_or_no_request_is_cut_off_and_news_continue(
    target: Target, payload: bytes, source: str
) -> None:
    with peak_bytes() as peak:
        for _ in range(10):
            with target.connect(source) as sock, contextlib.suppress(OSError):
                sock.sendall(payload)
                assert b" 200 " not in message(sock)
        assert peak() < 2 << 20
    target.news_come()


def crowd(target: Target, source: str, payload: bytes, *, count: int = 1000) -> Iterator[socket.socket]:
    for _ in range(count):
        sock = socket.socket()
        sock.bind((source, 0))
        sock.setblocking(False)  # whom the kernel has no room for would be waited for
        sock.connect_ex((OWN, target.port))
        with contextlib.suppress(OSError):
            sock.send(payload)
        yield sock


@pytest.mark.parametrize(
    ("source", "payload"),
    [(STRANGER, b""), (PEER, b""), (PEER, b"GET /report HTTP/1.1\r\nHost: a\r\n"), (OTHER_PEER, b"\0" * 9000)],
    ids=["a stranger's", "a peer's", "a peer's, slow", "a peer's, too large"],
)
def test_a_thousand_connections_take_no_place_from_those_that_read_and_no_memory(
    target: Target, source: str, payload: bytes
) -> None:
    threads, crowded = threading.active_count(), []
    try:
        with peak_bytes() as peak:
            for number, sock in enumerate(crowd(target, source, payload)):
                crowded.append(sock)
                if number % 250 == 249:
                    target.news_come()
            target.news_come()
            assert peak() < 2 << 20
        assert threading.active_count() <= threads
    finally:
        for sock in crowded:
            sock.close()


@contextmanager
def hogged(target: Target, source: str, payload: bytes) -> Iterator[None]:
    """Connections from many threads, each of which keeps what it has got."""
    ended = threading.Event()

    def run() -> None:
        kept: deque[socket.socket] = deque(maxlen=40)  # who falls out is closed
        while not ended.is_set():
            kept.extend(crowd(target, source, payload, count=1))
            time.sleep(0.005)  # they share one interpreter with the server and its readers

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "payload",
    [b"", b"GET /report HTTP/1.1\r\nHost: a\r\n", request("/report", "0" * 32)],
    ids=["silent", "slow", "recorded on another connection"],
)
def test_a_program_that_takes_all_connections_of_a_nodes_address_keeps_its_agent_from_no_news(
    target: Target, payload: bytes
) -> None:
    with hogged(target, PEER, payload):
        for _ in range(5):
            time.sleep(0.2)
            target.news_come(2.0)
        for _ in range(3):  # nor one that begins only now
            with reading(OWN, target.port, own_address=PEER, hold_seconds=HOLD_SECONDS) as late:
                until(lambda reader=late: reader.status.living is not None, LATE_SECONDS)  # type: ignore[misc]
    time.sleep(HOLD_SECONDS + 0.5)  # those that began have left
    with ExitStack() as stack:
        places = [stack.enter_context(target.connect(PEER)) for _ in range(Limits().per_source - 1)]
        for sock in places:
            sock.sendall(request("/report", challenge_of(sock)))
            assert message(sock).startswith(b"HTTP/1.1 200 ")
    target.news_come()


@contextmanager
def flood(send: Callable[[], object]) -> Iterator[list[float]]:
    """Send without a pause, from two threads; the moments of the answers."""
    ended = threading.Event()
    answered: list[float] = []

    def run() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                send()
                answered.append(time.monotonic())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield answered
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("source", [STRANGER, PEER])
def test_unsigned_requests_without_end_crowd_out_nobody(target: Target, source: str) -> None:
    with flood(lambda: target.send(request("/report", key=OTHER_KEY), source)) as answered:
        for _ in range(3):
            time.sleep(0.3)
            target.news_come()
    assert len(answered) > 100


def test_a_port_that_another_program_has_blocks_the_start_and_is_named(tree: Tree, port: int) -> None:
    host = machine(tree, 0)
    node = context(settings(addresses(2), port), host)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(AwaitedError, match=rf"port {port} of 127\.0\.0\.1") as caught,
        joined(node, host),
    ):
        pass
    assert caught.value.hint == f"who has it? sudo ss -tanp sport = :{port}"


def test_a_node_is_known_by_its_address_however_that_is_written(tree: Tree, port: int) -> None:
    host = machine(tree, 0)
    node = context(settings(("127.0.0.1", "::FFFF:127.0.0.2"), port), host)
    with joined(node, host) as cluster, reading("127.0.0.1", port, rank=0, own_address="127.0.0.2") as reader:
        cluster.sinks[0](make_public(report(0)))
        assert heard(reader) == report(0)
