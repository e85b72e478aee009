"""Which answers of another node are not believed. Real sockets; addresses of 127/8 stand for nodes."""

import gzip
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest
from tests.unit.nodes import (
    HOLD_SECONDS,
    KEY,
    OTHER_KEY,
    Node,
    contact_of,
    heard,
    node,
    reading,
    report,
    served,
    until,
)
from tests.unit.wire import answering, dripped, http, relay

from sparkd.agent.cluster.peer_reader import REPORT_BYTES
from sparkd.base.cluster.auth import NONCE_HEADER, SIGNATURE_HEADER, sign_answer
from sparkd.base.lib.http_connection import Handler, Request, Response
from sparkd.base.status.model import Contact, dump

SAME_KEY_HINT = "cluster.key_file must be the same on all nodes"
REFUSED = f"it refuses this node: {SAME_KEY_HINT}"
ANSWER_SECONDS = 0.6
PATIENCE_SECONDS = HOLD_SECONDS + ANSWER_SECONDS


def signed(by: str, body: bytes, key: bytes = KEY) -> Handler:
    """Answers any request, as `by`."""

    async def handle(request: Request) -> Response:
        nonce = request.headers[NONCE_HEADER.lower()]
        return Response(200, body, headers=((SIGNATURE_HEADER, sign_answer(key, nonce, by, request.path, 200, body)),))

    return handle


@pytest.fixture
def peer() -> Iterator[Node]:
    """A node with a report."""
    with node("127.0.0.2") as peer:
        peer.publish(report())
        yield peer


def test_nodes_with_different_keys_learn_nothing_of_each_other() -> None:
    with node("127.0.0.2", keys=[OTHER_KEY]) as peer, node("127.0.0.3") as other:
        peer.publish(report())
        other.publish(report(2))
        with (
            reading("127.0.0.2", peer.port) as mine,
            reading("127.0.0.3", other.port, rank=2, keys=[OTHER_KEY]) as theirs,
        ):
            for reader in (mine, theirs):
                assert contact_of(reader, Contact.UNSIGNED) == REFUSED
                assert reader.status.report is None
                assert reader.heard_at is None


def test_a_refusal_without_a_challenge_is_of_another_version_or_cluster() -> None:
    async def refuse(_: Request) -> Response:
        return Response(401)

    with served("127.0.0.2", refuse) as server, reading("127.0.0.2", server.port) as reader:
        why = "it refuses this node: cluster.nodes and the version of sparkd must be the same on all nodes"
        assert contact_of(reader, Contact.UNSIGNED) == why


def test_an_answer_that_was_recorded_is_not_believed_a_second_time(peer: Node) -> None:
    requests: list[bytes] = []
    answers: list[bytes] = []
    with relay("127.0.0.2", peer.port) as pass_on:

        def answer(request: bytes) -> Iterable[bytes]:
            """The peer's own answer to the first two requests, and the second one of these to all others."""
            requests.append(request)
            if len(answers) < 2:  # the first one brings the challenge, the second one the report
                answers.append(pass_on(request))
            return (answers[-1],)

        with answering("127.0.0.2", answer) as port, reading("127.0.0.2", port) as reader:
            until(lambda: reader.heard_at is not None)
            heard_at = reader.heard_at
            reason = contact_of(reader, Contact.UNSIGNED)
            assert reason == f"its answer is not signed with this node's key; {SAME_KEY_HINT}"
            count = len(requests)
            until(lambda: len(requests) >= count + 2)  # so that another answer has been judged
            assert reader.status.contact is Contact.UNSIGNED
            assert reader.heard_at == heard_at
            assert reader.status.report == report()


def test_an_answer_of_one_node_is_not_believed_as_another_ones() -> None:
    with node("127.0.0.2") as other:
        other.publish(report(2))
        with (
            relay("127.0.0.2", other.port) as pass_on,
            answering("127.0.0.3", lambda request: (pass_on(request),)) as port,
            reading("127.0.0.3", port, rank=2) as reader,
        ):
            assert contact_of(reader, Contact.UNSIGNED) == REFUSED
    with (
        served("127.0.0.3", signed("127.0.0.2", dump(report(2)).encode())) as server,
        reading("127.0.0.3", server.port, rank=2) as reader,
    ):
        assert contact_of(reader, Contact.UNSIGNED) == f"its answer is not signed with this node's key; {SAME_KEY_HINT}"
        assert reader.status.report is None


@pytest.mark.parametrize("change", [(b"standby", b"running"), (b"200", b"203"), (b"Sparkd-Signature: ", b"X: ")])
def test_an_answer_that_was_changed_on_its_way_is_not_believed(change: tuple[bytes, bytes]) -> None:
    with node("127.0.0.2") as peer:
        peer.publish(report(message="standby"))

        with (
            relay("127.0.0.2", peer.port) as pass_on,
            answering("127.0.0.2", lambda request: (pass_on(request).replace(*change, 1),)) as port,
            reading("127.0.0.2", port) as reader,
        ):
            reason = contact_of(reader, Contact.UNSIGNED)
            assert reason == f"its answer is not signed with this node's key; {SAME_KEY_HINT}"
            assert reader.status.report is None


@pytest.mark.parametrize("body", [dump(report(2)).encode(), b"garbage"], ids=["another rank's", "garbage"])
def test_a_signed_answer_that_is_no_report_of_this_rank_is_not_believed(body: bytes) -> None:
    with served("127.0.0.2", signed("127.0.0.2", body)) as server, reading("127.0.0.2", server.port) as reader:
        assert contact_of(reader, Contact.UNSIGNED).startswith("its answer is no report of this rank")
        assert reader.status.report is None


def test_a_signed_answer_that_is_too_long_for_a_report_is_not_parsed() -> None:
    """`[[],[],...]` takes over 20 times its size once it is parsed: 220 MiB for 8 MiB. Here it has 300 kB."""
    body = dump(report()).encode()[:-1] + b', "more": [' + b"[]," * 100_000 + b"[]]}"
    with served("127.0.0.2", signed("127.0.0.2", body)) as server, reading("127.0.0.2", server.port) as reader:
        assert contact_of(reader, Contact.SILENT) == f"answer of over {REPORT_BYTES} bytes"
        assert reader.status.report is None


def test_a_node_that_has_no_report_yet_has_not_answered() -> None:
    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port) as reader:
        assert contact_of(reader, Contact.SILENT) == "it has no report yet"
        peer.publish(report())
        assert heard(reader) == report()


OTHER_SERVERS: dict[str, tuple[list[bytes], Contact]] = {
    "ssh": ([b"SSH-2.0-OpenSSH_9.6\r\n"], Contact.SILENT),
    "zeros": ([b"\0" * 100_000], Contact.SILENT),
    "closed": ([], Contact.SILENT),
    "200 KiB": ([http(b"x" * (200 << 10))], Contact.UNSIGNED),
    "bytes as a signature": ([http(b"", b"Sparkd-Signature: \xff\xfe")], Contact.UNSIGNED),
    "9 MiB": ([http(b"x" * (9 << 20))], Contact.SILENT),
    "1 MiB of headers": ([b"HTTP/1.1 200 x\r\n", *[b"X: " + b"x" * 1000 + b"\r\n"] * 1000], Contact.SILENT),
    "redirection": ([http(b"", b"Location: http://127.0.0.1:1/", status=302)], Contact.UNSIGNED),
    "redirection without a host": ([http(b"", b"Location: mailto:x", status=302)], Contact.UNSIGNED),
    "cookie": ([http(b"", b"Set-Cookie: a=\xff", status=401)], Contact.UNSIGNED),
}


@pytest.mark.parametrize(("answer", "contact"), OTHER_SERVERS.values(), ids=OTHER_SERVERS)
def test_other_servers_are_not_believed(answer: list[bytes], contact: Contact) -> None:
    requests = []

    def answered(request: bytes) -> list[bytes]:
        requests.append(request)
        return answer

    with answering("127.0.0.2", answered) as port, reading("127.0.0.2", port) as reader:
        assert 0 < len(contact_of(reader, contact)) <= 200
        assert reader.status.report is None
        assert reader.heard_at is None
        assert reader.status.said.isprintable()
        count = len(requests)
        until(lambda: len(requests) > count)  # it keeps trying


def test_a_compressed_bomb_takes_no_memory() -> None:
    """Not for a moment either: what is inflated and dropped counts in the peak."""
    bomb = http(gzip.compress(b"\0" * (64 << 20), 9), b"Content-Encoding: gzip")
    with answering("127.0.0.2", lambda _: (bomb,)) as port:
        tracemalloc.start()
        try:
            with reading("127.0.0.2", port) as reader:
                contact_of(reader, Contact.UNSIGNED)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 16 << 20


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 200 x\r\nContent-Length: 99999\r\n\r\n", b"HTTP/1.1 200 x\r\nContent-Type: ", b""],
    ids=["body", "headers", "garbage"],
)
def test_an_answer_that_drips_is_given_up_in_time(data: bytes) -> None:
    with answering("127.0.0.2", lambda _: dripped(data, 0.005)) as port, reading("127.0.0.2", port) as reader:
        took = until(lambda: reader.status.contact is Contact.SILENT, 3 * PATIENCE_SECONDS)
        assert took < PATIENCE_SECONDS + 0.5
