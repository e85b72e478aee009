"""What is read of another node, and believed. Real sockets; addresses of 127/8 stand for nodes."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from tests.unit.nodes import (
    HOLD_SECONDS,
    KEY,
    NEW_KEY,
    OTHER_KEY,
    heard,
    network,
    node,
    reading,
    report,
    served,
    until,
)
from tests.unit.wire import answering, dripped, http, passed_on

from sparkd.lib.http_client import HttpError
from sparkd.lib.http_connection import Handler, Request, Response
from sparkd.peers.peers import Peers
from sparkd.peers.reader import Reader, Source, UnsignedError
from sparkd.report.node_report import Contact, NodeReport, Phase, dump
from sparkd.signing import NONCE_HEADER, SIGNATURE_HEADER, sign_answer

KEYS = "cluster.key_file must be the same on all nodes"
ANSWER_SECONDS = 0.6
PATIENCE_SECONDS = HOLD_SECONDS + ANSWER_SECONDS


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def signed(by: str, body: bytes, key: bytes = KEY) -> Handler:
    """Answers whatever is asked, as `by`."""

    async def handle(request: Request) -> Response:
        nonce = request.headers[NONCE_HEADER.lower()]
        return Response(200, body, headers=((SIGNATURE_HEADER, sign_answer(key, nonce, by, request.path, 200, body)),))

    return handle


def test_a_report_is_read_and_news_come_at_once_and_ring_the_bell_once() -> None:
    rings: list[float] = []
    with node("127.0.0.2") as one:
        one.tell(report())
        with reading("127.0.0.2", one.port, bell=lambda: rings.append(time.monotonic())) as reader:
            assert heard(reader) == report()
            for message in ("first", "second", "third"):
                time.sleep(0.1)  # the next request is held by now
                one.tell(report(message=message))
                took = until(lambda said=message: heard(reader).message == said)  # type: ignore[misc]  # bound now
                assert took < 0.3
            assert len(rings) == 4
            heard_at = reader.snapshot.heard_at
            until(lambda: reader.snapshot.heard_at != heard_at)
            assert len(rings) == 4  # an answer that says the same is no news
            assert reader.snapshot.said == ""


def test_a_quiet_node_is_asked_once_in_the_time_that_it_may_hold_an_answer() -> None:
    asked = []
    with node("127.0.0.2") as one:
        one.tell(report())

        async def counting(request: Request) -> Response:
            asked.append(request)
            return await one.exchange.handle(request)

        with served("127.0.0.2", counting) as server, reading("127.0.0.2", server.port) as reader:
            heard(reader)
            time.sleep(1.0)
    assert len(asked) <= 1 + 1 / HOLD_SECONDS + 1


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.7"])
def test_a_node_asks_from_its_own_address(own: str) -> None:
    sources = set()

    def admits(source: str) -> bool:
        sources.add(source)
        return True

    with node("127.0.0.2", admits=admits) as one:
        one.tell(report())
        with reading("127.0.0.2", one.port, own_address=own) as reader:
            heard(reader)
    assert sources == {own}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ((KEY,), (NEW_KEY, KEY)),  # this node has the new file already
        ((NEW_KEY, KEY), (KEY,)),  # the other one has
        ((NEW_KEY, KEY), (NEW_KEY, KEY)),
        ((NEW_KEY,), (NEW_KEY, KEY)),
        ((KEY, NEW_KEY), (NEW_KEY, KEY)),
    ],
)
def test_while_keys_change_nodes_read_each_other(theirs: tuple[bytes, ...], ours: tuple[bytes, ...]) -> None:
    with node("127.0.0.2", keys=theirs) as one:
        one.tell(report())
        with reading("127.0.0.2", one.port, keys=ours) as reader:
            heard(reader)
            one.tell(report(message="news"))
            assert until(lambda: heard(reader).message == "news") < 0.5


def test_keys_change_under_nodes_that_read_each_other_and_no_contact_is_lost() -> None:
    theirs, ours = [KEY], [KEY]
    with node("127.0.0.2", keys=theirs) as one:
        one.tell(report())
        with reading("127.0.0.2", one.port, keys=ours) as reader:
            heard(reader)
            contacts = set()

            def answered_after(moment: float | None) -> bool:
                contacts.add(reader.snapshot.contact)
                return reader.snapshot.heard_at != moment

            for change, keys in [
                (theirs, [NEW_KEY, KEY]),
                (ours, [NEW_KEY, KEY]),
                (theirs, [NEW_KEY]),
                (ours, [NEW_KEY]),
            ]:
                change[:] = keys
                until(partial(answered_after, reader.snapshot.heard_at))
            assert contacts == {Contact.ANSWERS}


def contact_of(reader: Reader, contact: Contact) -> str:
    until(lambda: reader.snapshot.contact is contact)
    return reader.snapshot.said


def test_nodes_with_different_keys_learn_nothing_of_each_other() -> None:
    with node("127.0.0.2", keys=[OTHER_KEY]) as one, node("127.0.0.3") as other:
        one.tell(report())
        other.tell(report(2))
        with (
            reading("127.0.0.2", one.port) as mine,
            reading("127.0.0.3", other.port, rank=2, keys=[OTHER_KEY]) as theirs,
        ):
            for reader in (mine, theirs):
                assert (
                    contact_of(reader, Contact.UNSIGNED)
                    == "it refuses this node: cluster.key_file and cluster.nodes must be the same on all"
                )
                assert reader.snapshot.report is None
                assert reader.snapshot.heard_at is None


def test_an_answer_that_was_recorded_is_not_believed_a_second_time() -> None:
    recorded: list[bytes] = []
    with node("127.0.0.2") as one:
        one.tell(report())

        def answer(request: bytes) -> Iterable[bytes]:
            if not recorded:
                recorded.append(passed_on(request, "127.0.0.2", one.port))
            return (recorded[0],)

        with answering("127.0.0.2", answer) as port, reading("127.0.0.2", port) as reader:
            until(lambda: reader.snapshot.heard_at is not None)
            heard_at = reader.snapshot.heard_at
            assert contact_of(reader, Contact.UNSIGNED) == f"its answer is not signed with this node's key; {KEYS}"
            time.sleep(0.6)  # it asks again
            assert (reader.snapshot.contact, reader.snapshot.heard_at) == (Contact.UNSIGNED, heard_at)
            assert reader.snapshot.report == report()


def test_an_answer_of_one_node_is_not_believed_as_another_ones() -> None:
    with node("127.0.0.2") as other:
        other.tell(report(2))
        with (
            answering("127.0.0.3", lambda request: (passed_on(request, "127.0.0.2", other.port),)) as port,
            reading("127.0.0.3", port, rank=2) as reader,
        ):
            assert (
                contact_of(reader, Contact.UNSIGNED)
                == "it refuses this node: cluster.key_file and cluster.nodes must be the same on all"
            )
    with (
        served("127.0.0.3", signed("127.0.0.2", dump(report(2)).encode())) as server,
        reading("127.0.0.3", server.port, rank=2) as reader,
    ):
        assert contact_of(reader, Contact.UNSIGNED) == f"its answer is not signed with this node's key; {KEYS}"
        assert reader.snapshot.report is None


@pytest.mark.parametrize("change", [(b"standby", b"running"), (b"200", b"203"), (b"Sparkd-Signature: ", b"X: ")])
def test_an_answer_that_was_changed_on_its_way_is_not_believed(change: tuple[bytes, bytes]) -> None:
    with node("127.0.0.2") as one:
        one.tell(report(message="standby"))

        def answer(request: bytes) -> Iterable[bytes]:
            return (passed_on(request, "127.0.0.2", one.port).replace(*change, 1),)

        with answering("127.0.0.2", answer) as port, reading("127.0.0.2", port) as reader:
            contact_of(reader, Contact.UNSIGNED)
            assert reader.snapshot.report is None


@pytest.mark.parametrize(
    "body",
    [
        dump(report(2)).encode(),
        b"",
        b"garbage",
        b"\xff" * 1000,
        b'{"schema": 2}',
        b"[" * 1_000_000,
        dump(report()).encode()[:-9],
        dump(report()).replace('"awaiting-peers"', '"dancing"').encode(),
    ],
    ids=["another rank's", "empty", "text", "bytes", "schema", "nested", "cut", "phase"],
)
def test_a_signed_answer_that_is_no_report_of_this_rank_is_not_believed(body: bytes) -> None:
    with (
        served("127.0.0.2", signed("127.0.0.2", body)) as server,
        reading("127.0.0.2", server.port) as reader,
    ):
        assert contact_of(reader, Contact.UNSIGNED).startswith("its answer is no report of this rank")
        assert reader.snapshot.report is None


def test_a_node_that_has_no_report_yet_has_not_answered() -> None:
    with node("127.0.0.2") as one, reading("127.0.0.2", one.port) as reader:
        assert contact_of(reader, Contact.SILENT) == "it has nothing to tell yet"
        one.tell(report())
        assert heard(reader) == report()


@pytest.mark.parametrize(
    ("answer", "contact"),
    [
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], Contact.SILENT),
        ([b"\0" * 100_000], Contact.SILENT),
        ([], Contact.SILENT),
        ([http(b"x" * (1 << 20))], Contact.UNSIGNED),
        ([http(b"", b"Sparkd-Signature: \xff\xfe")], Contact.UNSIGNED),
        ([http(b"x" * (9 << 20))], Contact.SILENT),
        ([b"HTTP/1.1 200 x\r\n", *[b"X: " + b"x" * 1000 + b"\r\n"] * 1000], Contact.SILENT),
        ([http(b"", b"Location: http://127.0.0.1:1/", status=302)], Contact.UNSIGNED),
        ([http(b"", b"Location: mailto:x", status=302)], Contact.UNSIGNED),
        ([http(b"", b"Set-Cookie: a=\xff", status=401)], Contact.UNSIGNED),
    ],
    ids=[
        "ssh",
        "zeros",
        "closed",
        "1 MiB",
        "bytes as a signature",
        "9 MiB",
        "1 MiB of headers",
        "redirection",
        "redirection to nowhere",
        "cookie",
    ],
)
def test_whatever_else_answers_there_is_not_believed(answer: list[bytes], contact: Contact) -> None:
    requests = []

    def answered(request: bytes) -> list[bytes]:
        requests.append(request)
        return answer

    with answering("127.0.0.2", answered) as port, reading("127.0.0.2", port) as reader:
        assert 0 < len(contact_of(reader, contact)) <= 200
        assert (reader.snapshot.report, reader.snapshot.heard_at) == (None, None)
        assert reader.snapshot.said.isprintable()
        asked = len(requests)
        until(lambda: len(requests) > asked)  # it goes on asking


def test_an_answer_that_would_unfold_to_a_thousand_times_its_size_takes_no_memory() -> None:
    bomb = http(gzip.compress(b"\0" * (64 << 20), 9), b"Content-Encoding: gzip")
    before = resident_bytes()
    with answering("127.0.0.2", lambda _: (bomb,)) as port, reading("127.0.0.2", port) as reader:
        contact_of(reader, Contact.UNSIGNED)
        assert resident_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 200 x\r\nContent-Length: 99999\r\n\r\n", b"HTTP/1.1 200 x\r\nContent-Type: ", b""],
    ids=["body", "headers", "garbage"],
)
def test_an_answer_that_drips_is_given_up_in_time(data: bytes) -> None:
    with (
        answering("127.0.0.2", lambda _: dripped(data, 0.005)) as port,
        reading("127.0.0.2", port) as reader,
    ):
        took = until(lambda: reader.snapshot.contact is Contact.SILENT, 3 * PATIENCE_SECONDS)
        assert took < PATIENCE_SECONDS + 0.5


def test_a_node_that_is_gone_is_known_to_be_within_a_second() -> None:
    with node("127.0.0.2") as one:
        one.tell(report())
        with reading("127.0.0.2", one.port) as reader:
            heard(reader)
            heard_at, since = reader.snapshot.heard_at, reader.snapshot.since
            one.server.close()
            assert until(lambda: reader.snapshot.contact is Contact.REFUSED) < 1
            assert (reader.snapshot.heard_at, reader.snapshot.report) == (heard_at, report())
            assert reader.snapshot.since > since
            assert reader.snapshot.living is None


def test_a_node_that_came_back_is_another_life() -> None:
    with node("127.0.0.2") as one:
        one.tell(report())
        with reading("127.0.0.2", one.port) as reader:
            heard(reader)
            one.server.close()
            with node("127.0.0.2", port=one.port) as again:
                again.tell(report(incarnation="new", last_cause="boom (exit 13)"))
                assert until(lambda: heard(reader).incarnation == "new") < 1.2


NODE = """
import sys, time
from tests.unit.nodes import node, report
with node("127.0.0.2") as one:
    one.tell(report())
    print(one.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def process() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A node in a process of its own; its port."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as one:
        try:
            assert one.stdout is not None
            yield int(one.stdout.readline()), one
        finally:
            one.kill()


def test_a_frozen_node_is_silent_keeps_its_last_report_and_is_heard_again_when_it_goes_on_and_refused_when_killed() -> (
    None
):
    with process() as (port, one), reading("127.0.0.2", port) as reader:
        heard(reader)
        until(lambda: reader.snapshot.heard_at is not None)
        one.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # what was on its way has come
        heard_at = reader.snapshot.heard_at
        assert until(lambda: reader.snapshot.contact is Contact.SILENT) < PATIENCE_SECONDS + 0.5
        assert reader.snapshot.said == f"no answer within {PATIENCE_SECONDS:g} s"
        assert (reader.snapshot.heard_at, reader.snapshot.report) == (heard_at, report())
        one.send_signal(signal.SIGCONT)
        assert until(lambda: reader.snapshot.contact is Contact.ANSWERS) < PATIENCE_SECONDS + 1
        one.kill()
        assert until(lambda: reader.snapshot.contact is Contact.REFUSED) < 1


def test_one_lost_connection_is_no_silence() -> None:
    with node("127.0.0.2") as one:
        one.tell(report())
        lost = iter([False, True, False, True, False])

        def answer(request: bytes) -> Iterable[bytes]:
            return () if next(lost, False) else (passed_on(request, "127.0.0.2", one.port),)

        contacts: list[Contact] = []
        with (
            answering("127.0.0.2", answer) as port,
            reading("127.0.0.2", port, bell=lambda: contacts.append(reader.snapshot.contact)) as reader,
        ):
            until(lambda: len(contacts) >= 3)
            assert set(contacts) == {Contact.ANSWERS}


def test_an_own_address_that_is_not_there_is_silence_and_no_refusal() -> None:
    with node("127.0.0.2") as one, reading("127.0.0.2", one.port, own_address="192.0.2.77") as reader:
        assert "assign requested address" in contact_of(reader, Contact.SILENT)


def test_an_address_that_nobody_routes_to_is_silence_and_no_refusal() -> None:
    with reading("255.255.255.255", 9) as reader:
        assert contact_of(reader, Contact.SILENT) != ""


def test_ipv6_is_read_too() -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        return
    with node("::1") as one:
        one.tell(report())
        with reading("::1", one.port, own_address="::1") as reader:
            assert heard(reader) == report()


def values(reader: Reader) -> bytes:
    return asyncio.run(reader.values())


def test_the_values_of_a_plan_are_read_and_proved_as_a_report_is() -> None:
    with node("127.0.0.2") as one, reading("127.0.0.2", one.port) as reader:
        with pytest.raises(HttpError, match="HTTP 404"):
            values(reader)
        one.exchange.values = b'{"a":"b"}'
        assert values(reader) == b'{"a":"b"}'
        one.tell(report())
        assert values(reader) == b'{"a":"b"}'
    with (
        node("127.0.0.2", keys=[OTHER_KEY]) as other,
        reading("127.0.0.2", other.port) as reader,
        pytest.raises(UnsignedError),
    ):
        values(reader)
    with reading("127.0.0.2", other.port) as reader, pytest.raises(HttpError):
        values(reader)


def test_all_nodes_are_read_in_rank_order_by_one_thread_and_none_stays_behind() -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        others = [stack.enter_context(node(f"127.0.0.{rank + 1}")) for rank in range(1, 64)]
        for rank, one in enumerate(others, 1):
            one.tell(report(rank))
            one.exchange.values = str(rank).encode()
        sources = [
            Source(rank, f"127.0.0.{rank + 1}", one.port, "127.0.0.1", HOLD_SECONDS, ANSWER_SECONDS)
            for rank, one in enumerate(others, 1)
        ]
        peers = Peers(sources, lambda: (KEY,), lambda: None)
        assert [one.contact for one in peers.snapshots()] == [Contact.UNHEARD] * 63
        serving = threading.active_count()
        with network() as loop:
            peers.start(loop)
            until(lambda: all(one.living for one in peers.snapshots()))
            assert [one.report for one in peers.snapshots()] == [report(rank) for rank in range(1, 64)]
            assert loop.run(peers.values(3)) == b"3"
            assert threading.active_count() == serving + 1
    assert threading.active_count() <= before


def test_a_node_is_named_as_a_person_knows_it() -> None:
    with node("127.0.0.2") as one, reading("127.0.0.2", one.port) as reader:
        assert reader.snapshot.name == "127.0.0.2"
        told: NodeReport = report(phase=Phase.SERVING)
        one.tell(told)
        heard(reader)
        assert reader.snapshot.name == "spark2 (127.0.0.2)"
        seen = reader.snapshot.as_peer()
        assert (seen.address, seen.rank, seen.contact, seen.report) == ("127.0.0.2", 1, Contact.ANSWERS, told)


def test_a_bug_that_ends_a_reader_is_told_to_who_relies_on_it() -> None:
    bug = TypeError("a bug")

    def keys() -> tuple[bytes, ...]:
        raise bug

    told: list[BaseException] = []
    peers = Peers((Source(1, "127.0.0.2", 1, "127.0.0.1", HOLD_SECONDS),), keys, lambda: None)
    with network(told.append) as loop:
        peers.start(loop)
        until(lambda: bool(told))
    assert told == [bug]
