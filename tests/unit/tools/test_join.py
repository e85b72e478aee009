"""The join on real sockets, of nodes with and without the code, and of those between them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.unit.event_log import EventLog
from tests.unit.wire import answering, http, message, passed_on, relay, serving

from sparkd import __version__
from sparkd.agent.cluster.inventory import CODEC, Image, Inventory, Model
from sparkd.base.config.settings import Allow
from sparkd.base.lib.errors import BlockedError, UsageError
from sparkd.tools.setup import join
from sparkd.tools.setup.join import Guest, Invitation, Refusal
from sparkd.tools.setup.join_code import Ephemeral, JoinCode
from sparkd.tools.setup.join_request import Joined, confirm, fetch_keys

HEAD, NODE, OTHER, THIRD = "127.0.0.2", "127.0.0.1", "127.0.0.3", "127.0.0.4"
GOOD = Inventory("spark9", 1 << 37, True, Allow(), ("i:1",), "/srv/models", (Model("m", 5),), (Image("i:1", "x"),))
KEYS = (bytes(range(32)), bytes(range(100, 132)))
HEAD_KEYS = (bytes(range(200, 232)), bytes(range(50, 82)))


@contextmanager
def inviting(
    limit: int = 3,
    nodes: tuple[str, ...] = (HEAD,),
    seconds: float = 600.0,
    log: EventLog | None = None,
    wrong_seconds: float = 0.05,
    **options: Any,
) -> Iterator[Invitation]:
    with Invitation(
        HEAD,
        nodes,
        KEYS,
        limit,
        head_keys=HEAD_KEYS,
        port=0,
        valid_seconds=seconds,
        wrong_seconds=wrong_seconds,
        events=log or EventLog(),
        **options,
    ) as invitation:
        yield invitation


def other_code(invitation: Invitation) -> str:
    right = JoinCode.parse(invitation.code)
    return str(right._replace(secret=right.secret ^ 1))


class JoiningNode:
    """The node's side of a join, on one connection."""

    def __init__(self, sock: socket.socket, source: str, code: str) -> None:
        self._sock, self._own = sock, Ephemeral()
        offer = json.loads(self.send(b"GET /join HTTP/1.1\r\nHost: h\r\n\r\n").body)
        key, challenge = bytes.fromhex(offer["key"]), offer["challenge"]
        self._to_head, self.from_head = self._own.seals(key, JoinCode.parse(code), source, challenge, head=False)

    def make_request(self, *, written: bool = False, inventory: bytes = b"") -> bytes:
        sealed = self._to_head.close(join.Hello("spark9", "1.2.3", written, inventory))
        return f"GET /join?key={self._own.public.hex()}&sealed={sealed.hex()} HTTP/1.1\r\nHost: h\r\n\r\n".encode()

    def send(self, request: bytes) -> Answered:
        self._sock.sendall(request)
        head, _, body = message(self._sock).partition(b"\r\n\r\n")
        return Answered(int(head.split()[1]), body, request)


class Answered(NamedTuple):
    status: int
    body: bytes
    request: bytes


@contextmanager
def connected(invitation: Invitation, source: str, code: str = "") -> Iterator[JoiningNode]:
    """A node at that address, which has the head's offer."""
    with socket.create_connection((HEAD, invitation.port), 10, (source, 0)) as sock:
        yield JoiningNode(sock, source, code or invitation.code)


def request(invitation: Invitation, source: str, code: str = "", *, written: bool = False) -> Answered:
    with connected(invitation, source, code) as node:
        return node.send(node.make_request(written=written))


def join_as(invitation: Invitation, source: str) -> None:
    """The node gets the key, writes it, and reports that."""
    assert request(invitation, source).status == request(invitation, source, written=True).status == 200


def test_a_node_with_the_code_gets_keys_addresses_and_nodes() -> None:
    log = EventLog()
    with inviting(1, log=log) as invitation:
        joined = fetch_keys(invitation.code, port=invitation.port)
        assert joined == Joined(KEYS, HEAD, NODE, (HEAD, NODE), HEAD_KEYS)
        confirm(invitation.code, GOOD, port=invitation.port)
        assert list(invitation.guests()) == [Guest(NODE, socket.gethostname(), __version__, False, GOOD)]
    assert [event for event, _ in log.lines] == ["cluster.node.joined"]
    assert all(key.hex() not in repr(log.lines) for key in KEYS)
    assert invitation.code not in repr(log.lines)


def test_nodes_are_listed_in_order_of_joining() -> None:
    with inviting() as invitation:
        for source in (THIRD, OTHER):
            join_as(invitation, source)
        assert fetch_keys(invitation.code, port=invitation.port).nodes == (HEAD, THIRD, OTHER, NODE)
        join_as(invitation, NODE)
        assert [guest.address for guest in invitation.guests()] == [THIRD, OTHER, NODE]


def test_a_node_of_the_cluster_gets_the_key_again_and_the_head_is_informed() -> None:
    with inviting(1, nodes=(HEAD, OTHER, NODE)) as invitation:
        assert fetch_keys(invitation.code, port=invitation.port).nodes == (HEAD, OTHER, NODE)
        join_as(invitation, NODE)
        assert [guest.known for guest in invitation.guests() if isinstance(guest, Guest)] == [True]


def test_each_node_can_use_a_code_once() -> None:
    with inviting() as invitation:
        join_as(invitation, NODE)
        with pytest.raises(BlockedError, match=r"127\.0\.0\.1 has joined by this code already"):
            fetch_keys(invitation.code, port=invitation.port)
        refused = next(guest for guest in invitation.guests() if isinstance(guest, Refusal))
        assert refused == Refusal(NODE, "127.0.0.1 has joined by this code already")


def test_until_it_reports_that_it_has_the_key_a_node_gets_it_again_and_no_other_node_has_its_place() -> None:
    """The answer may be lost, or the node's disk full."""
    log = EventLog()
    with inviting(1, log=log) as invitation:
        for _ in range(3):
            assert fetch_keys(invitation.code, port=invitation.port).keys == KEYS
            assert (
                passed_on(b"GET /join HTTP/1.1\r\nHost: h\r\n\r\n", HEAD, invitation.port, OTHER).split()[1] == b"410"
            )
        confirm(invitation.code, GOOD, port=invitation.port)
        assert [guest.address for guest in invitation.guests()] == [NODE]
        with pytest.raises(BlockedError, match="not valid any more"):
            fetch_keys(invitation.code, port=invitation.port)
    assert [event for event, _ in log.lines] == ["cluster.node.joined"] * 3, "each key that was sent"


def test_only_a_node_that_got_the_key_can_report_that() -> None:
    with inviting() as invitation:
        with connected(invitation, NODE) as node:
            answer = node.send(node.make_request(written=True))
        assert "has got no key by this code" in node.from_head.open(answer.body, join.Welcome).refused
        invitation.end_in(0.3)
        assert [type(guest) for guest in invitation.guests()] == [Refusal]


@pytest.mark.parametrize(
    "wrong", [b"", b"{}", b"[" * 5000, b"\xff", b"x" * 20_001, CODEC.encode(GOOD).replace("5", '"5"').encode()]
)
def test_what_a_node_has_is_unknown_where_it_is_no_inventory(wrong: bytes) -> None:
    with inviting(1) as invitation:
        request(invitation, NODE)
        with connected(invitation, NODE) as node:
            assert node.send(node.make_request(written=True, inventory=wrong)).status == 200
        (guest,) = invitation.guests()
        assert isinstance(guest, Guest)
        assert guest.inventory is None


@pytest.mark.parametrize(("length", "arrives"), [(100, True), (1000, False)])
def test_an_inventory_of_many_models_arrives_unless_it_is_too_long(length: int, arrives: bool) -> None:
    many = msgspec.structs.replace(GOOD, models=tuple(Model("m" * length, number) for number in range(100)))
    with inviting(1) as invitation:
        fetch_keys(invitation.code, port=invitation.port)
        confirm(invitation.code, many, port=invitation.port)
        (guest,) = invitation.guests()
        assert isinstance(guest, Guest)
        assert guest.inventory == (many if arrives else None)


def test_no_more_nodes_join_than_a_cluster_has() -> None:
    others = tuple(f"127.0.1.{number}" for number in range(7))
    with inviting(7, others) as invitation, pytest.raises(BlockedError, match="has 8 nodes already"):
        fetch_keys(invitation.code, port=invitation.port)


@pytest.mark.parametrize(("reason", "addition"), [("", ""), ("recipe x is for no more", "; recipe x is for no more")])
def test_no_more_nodes_join_than_may_and_the_refusal_says_why(reason: str, addition: str) -> None:
    with inviting(nodes=(HEAD, OTHER), most_nodes=2, limit_reason=reason) as invitation:
        with pytest.raises(BlockedError) as caught:
            fetch_keys(invitation.code, port=invitation.port)
        remedy = "one that is gone is to leave cluster.nodes on the head first"
        assert caught.value.reason == f"the head refuses: the cluster has 2 nodes already: {remedy}{addition}"
        join_as(invitation, OTHER)


def test_a_code_ends_with_its_time() -> None:
    with inviting(seconds=0.3) as invitation:
        started = time.monotonic()
        assert list(invitation.guests()) == []
        assert time.monotonic() - started > 0.25
        with pytest.raises(BlockedError, match="not valid any more"):
            fetch_keys(invitation.code, port=invitation.port)
    with pytest.raises(BlockedError, match=r"nothing waits at 127\.0\.0\.2 port"):
        fetch_keys(invitation.code, port=invitation.port)


def test_a_node_that_reaches_its_head_by_a_router_alone_is_named_where_nothing_answers() -> None:
    """No route of the main table is for 127.0.0.0/8."""
    listener, refused = socket.create_server((HEAD, 0)), pytest.raises(BlockedError, match="does not answer")
    with listener, serving(listener, lambda _: []), refused as caught:
        fetch_keys(str(JoinCode.new(HEAD)), port=listener.getsockname()[1])
    assert caught.value.hint.startswith("this node has no address there: ")


def test_the_heads_own_code_is_refused_on_the_head() -> None:
    code = str(JoinCode.new(NODE))
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 is this node itself"):
        fetch_keys(code)


def test_a_taken_port_is_named() -> None:
    with inviting() as invitation, pytest.raises(BlockedError, match=f"port {invitation.port} of 127.0.0.2"):
        Invitation(HEAD, (HEAD,), KEYS, head_keys=HEAD_KEYS, port=invitation.port)


def test_a_wrong_code_is_refused_counted_and_takes_its_sender_time() -> None:
    log = EventLog()
    with inviting(1, log=log, wrong_seconds=0.5) as invitation:
        started = time.monotonic()
        with pytest.raises(UsageError, match="refuses the code"):
            fetch_keys(other_code(invitation), port=invitation.port)
        assert time.monotonic() - started >= 0.5
        assert log.lines == [("cluster.join.refused", {"source": NODE, "reason": "wrong code", "count": 1})]
        join_as(invitation, NODE)
        assert [type(guest) for guest in invitation.guests()] == [Refusal, Guest]


def test_ten_wrong_codes_end_the_invitation_for_the_right_one_too() -> None:
    with inviting(again="sudo sparkd init --nodes 2 --recipe x") as invitation:
        for number in range(join.MOST_WRONG):
            assert request(invitation, f"127.0.2.{number + 1}", other_code(invitation)).status == 401
        with pytest.raises(BlockedError, match="not valid any more"):
            fetch_keys(invitation.code, port=invitation.port)
        refusals: list[Guest | Refusal] = []
        with pytest.raises(BlockedError, match=r"10 wrong codes, the last one from 127\.0\.2\.10") as caught:
            refusals.extend(invitation.guests())
        assert caught.value.hint == "sudo sparkd init --nodes 2 --recipe x"
        assert len(refusals) == 10


def test_a_recorded_exchange_is_worthless_elsewhere_and_with_another_code() -> None:
    with inviting() as first:
        recorded = request(first, OTHER).request
        for source in (OTHER, NODE):
            assert passed_on(recorded, HEAD, first.port, source).split()[1] == b"401"
    with inviting() as second:
        assert passed_on(recorded, HEAD, second.port, OTHER).split()[1] == b"401"


def test_a_request_that_is_repeated_on_its_own_connection_brings_nothing_more() -> None:
    with inviting() as invitation, connected(invitation, OTHER) as node:
        first, written = node.make_request(), node.make_request(written=True)
        answers = [node.from_head.open(node.send(sent).body, join.Welcome) for sent in (first, written, first)]
    assert [bool(answer.keys) for answer in answers] == [True, False, False]


@contextmanager
def between(invitation: Invitation, change: Callable[[bytes, bool], bytes], wire: list[bytes]) -> Iterator[int]:
    """The port of a machine in the middle that has the head's address."""
    with relay(HEAD, invitation.port) as pass_on:

        def answer(request: bytes) -> list[bytes]:
            changed = change(request, True)
            answered = pass_on(changed)
            wire.extend((request, answered))
            return [change(answered, False)]

        with answering(HEAD, answer) as port:
            yield port


def test_no_key_and_no_secret_is_ever_on_the_wire() -> None:
    messages: list[bytes] = []
    with inviting() as invitation, between(invitation, lambda data, _: data, messages) as port:
        assert fetch_keys(invitation.code, port=port).keys == KEYS
    wire = b"".join(messages)
    code = JoinCode.parse(invitation.code)
    secret = code.secret.to_bytes(12, "big")
    hidden = [*KEYS, *HEAD_KEYS, secret, secret.lstrip(b"\0"), f'"{socket.gethostname()}"'.encode()]
    hidden += [form for key in (*KEYS, secret[1:]) for form in (key.hex().encode(), key.hex().upper().encode())]
    hidden += [group.encode() for group in invitation.code.split("-")[1:]]
    assert len(messages) == 4
    assert [secret for secret in hidden if secret in wire or secret in read_hex(wire)] == []


def read_hex(wire: bytes) -> bytes:
    """The bytes that stand there as hex digits."""
    words = b"".join(bytes([letter]) if letter in b"0123456789abcdef" else b" " for letter in wire).split()
    return b" ".join(bytes.fromhex(word[: len(word) // 2 * 2].decode()) for word in words)


def test_a_machine_in_the_middle_that_swaps_the_heads_public_key_gets_nothing_and_is_refused() -> None:
    mine = Ephemeral()

    def swap(data: bytes, request: bool) -> bytes:
        body = data.partition(b"\r\n\r\n")[2]
        if request or b'"challenge"' not in body:
            return data
        changed = json.dumps({**json.loads(body), "key": mine.public.hex()}).encode()
        return http(changed)

    with inviting() as invitation, between(invitation, swap, []) as port:
        with pytest.raises(UsageError, match="refuses the code"):
            fetch_keys(invitation.code, port=port)
        assert [type(guest) for guest in islice(invitation.guests(), 1)] == [Refusal]


def test_a_machine_in_the_middle_that_swaps_both_public_keys_can_open_neither_side() -> None:
    mine = Ephemeral()
    requests: list[bytes] = []

    def answer(request: bytes) -> list[bytes]:
        requests.append(request)
        if b"key=" not in request:
            return [http(json.dumps({"key": mine.public.hex(), "challenge": "0" * 32}).encode())]
        return [http(b"x" * 200)]

    code = JoinCode.new(HEAD)
    with answering(HEAD, answer) as port, pytest.raises(BlockedError, match="is not from a sparkd with this code"):
        fetch_keys(str(code), port=port)
    fields = dict(part.split("=") for part in requests[-1].split()[1].decode().partition("?")[2].split("&"))
    for guess in (code.secret ^ 1, 0):
        from_node, _ = mine.seals(bytes.fromhex(fields["key"]), code._replace(secret=guess), NODE, "0" * 32, head=True)
        with pytest.raises(ValueError, match="without the code"):
            from_node.open(bytes.fromhex(fields["sealed"]), join.Hello)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 5000,
        b'{"key": "zz", "challenge": "c"}',
        b'{"key": "%s", "challenge": "c"}' % (b"00" * 32),
        b'{"key": "%s"}' % (b"01" * 32),
        b'{"key": 1, "challenge": 2}',
        b"\xff\xfe",
    ],
)
def test_an_offer_that_no_head_makes_is_no_sparkd(body: bytes) -> None:
    with answering(HEAD, lambda _: [http(body)]) as port, pytest.raises(BlockedError, match="not from a sparkd"):
        fetch_keys(str(JoinCode.new(HEAD)), port=port)


@pytest.mark.parametrize(
    ("keys", "nodes"),
    [
        ((), (HEAD, NODE)),
        (("00" * 32,) * 5, (HEAD, NODE)),
        (("00" * 31,), (HEAD, NODE)),
        (("zz" * 32,), (HEAD, NODE)),
        (("00" * 32,), ()),
        (("00" * 32,), (NODE, HEAD)),
        (("00" * 32,), (HEAD, OTHER)),
        (("00" * 32,), (HEAD, NODE, "spark3")),
        (("00" * 32,), (HEAD, NODE, *(f"10.0.0.{number}" for number in range(7)))),
    ],
)
def test_an_answer_that_no_head_makes_is_refused_with_the_code_too(
    keys: tuple[str, ...], nodes: tuple[str, ...]
) -> None:
    with answered(keys, nodes) as (code, port), pytest.raises(BlockedError, match="not from a sparkd"):
        fetch_keys(code, port=port)


@pytest.mark.parametrize("head_keys", [(), ("00",), ("zz" * 32,), ("00" * 32,) * 5])
def test_public_keys_of_the_head_that_no_head_sends_are_refused(head_keys: tuple[str, ...]) -> None:
    right = ("00" * 32,), (HEAD, NODE)
    with answered(*right, head_keys) as (code, port), pytest.raises(BlockedError, match="not from a sparkd"):
        fetch_keys(code, port=port)


@contextmanager
def answered(
    keys: tuple[str, ...], nodes: tuple[str, ...], head_keys: tuple[str, ...] = ("00" * 32,)
) -> Iterator[tuple[str, int]]:
    """The code and the port of a head that sends this."""
    own, code = Ephemeral(), JoinCode.new(HEAD)

    def answer(request: bytes) -> list[bytes]:
        if b"key=" not in request:
            return [http(json.dumps({"key": own.public.hex(), "challenge": "c"}).encode())]
        theirs = request.partition(b"key=")[2].partition(b"&")[0]
        _, to_node = own.seals(bytes.fromhex(theirs.decode()), code, NODE, "c", head=True)
        return [http(to_node.close(join.Welcome(__version__, keys, nodes, head_keys)))]

    with answering(HEAD, answer) as port:
        yield str(code), port


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /report HTTP/1.1", 404),
        (b"GET /join?key=00&sealed=00 HTTP/1.1", 400),
        (b"GET /join?key=zz&sealed=zz HTTP/1.1", 400),
        (b"GET /join?sealed=00 HTTP/1.1", 400),
        (b"GET /join?x HTTP/1.1", 400),
        (b"GET /join?key=%s&sealed=00 HTTP/1.1" % (b"00" * 32), 400),
        (b"GET /join?key=%s&sealed= HTTP/1.1" % (b"09" + b"00" * 31), 400),
        (b"GET /join?key=%s&sealed=%s HTTP/1.1" % (b"09" + b"00" * 31, b"00" * 31000), 431),
        (b"POST /join HTTP/1.1", 405),
        (b"GET /join HTTP/1.1\r\nContent-Length: 100000", 413),
        (b"\0\1\2\3", 400),
    ],
)
def test_garbage_is_refused_and_counts_as_no_code(request_line: bytes, status: int) -> None:
    log = EventLog()
    with inviting(1, log=log) as invitation:
        answered = passed_on(request_line + b"\r\nHost: h\r\n\r\n", HEAD, invitation.port, OTHER)
        assert int(answered.split()[1]) == status
        assert log.lines == []
        fetch_keys(invitation.code, port=invitation.port)


def test_a_flood_of_connections_and_slow_requests_keeps_no_node_out() -> None:
    with inviting(1) as invitation, ExitStack() as stack:
        for number in range(300):
            sock = stack.enter_context(socket.create_connection((HEAD, invitation.port), 10, (OTHER, 0)))
            sock.setblocking(False)
            sock.sendall(b"GET /jo" if number % 2 else b"")
        assert fetch_keys(invitation.code, port=invitation.port).keys == KEYS


def test_wrong_codes_at_the_same_time_all_count() -> None:
    log = EventLog()
    with inviting(log=log) as invitation:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda n: request(invitation, f"127.0.3.{n}", other_code(invitation)), range(1, 7)))
        assert [answer.status for answer in answers] == [401] * 6
    assert [fields["count"] for _, fields in log.lines] == [1, 2, 3, 4, 5, 6]
