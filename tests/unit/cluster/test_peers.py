"""Reading the reports of other nodes. Real sockets; addresses of 127/8 stand for nodes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from tests.unit.limits import no_more_threads
from tests.unit.nodes import (
    HOLD_SECONDS,
    KEY,
    NEW_KEY,
    OTHER_KEY,
    Node,
    contact_of,
    heard,
    network,
    node,
    reading,
    report,
    served,
    until,
)
from tests.unit.wire import answering, relay

from sparkd.agent.cluster.client import Source, UnsignedError
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import Contact, MemoryReport, dump

ANSWER_SECONDS = 0.6
PATIENCE_SECONDS = HOLD_SECONDS + ANSWER_SECONDS
AT_ONCE_SECONDS = 3.0
"""A retry takes half a second, on a busy machine more; the patience of a cluster is 20 s."""


@pytest.fixture
def peer(port: int) -> Iterator[Node]:
    """A node with a report, whose port stays its own when it ends."""
    with node("127.0.0.2", port=port) as peer:
        peer.publish(report())
        yield peer


@pytest.fixture
def reader(peer: Node) -> Iterator[PeerReader]:
    """A reader of that node, which it has heard."""
    with reading("127.0.0.2", peer.port) as reader:
        heard(reader)
        yield reader


def test_news_come_at_once_and_wake_the_loop_once() -> None:
    rings = list[float]()
    with node("127.0.0.2", hold_seconds=60) as slow:
        slow.publish(report())  # before the first request: an answer without a report is news, too
        with reading("127.0.0.2", slow.port, hold_seconds=60, wake=partial(rings.append, 1.0)) as reader:
            assert heard(reader) == report()
            for message in ("first", "second", "third"):
                time.sleep(0.1)  # the next request is held
                slow.publish(report(message=message))
                until(lambda expected=message: heard(reader).message == expected)  # type: ignore[misc]  # bound now
    assert len(rings) == 4


def test_an_answer_that_says_the_same_is_no_news(peer: Node) -> None:
    rings = list[float]()
    with reading("127.0.0.2", peer.port, answer_seconds=10, wake=partial(rings.append, 1.0)) as reader:
        heard(reader)
        heard_at = reader.heard_at
        until(lambda: reader.heard_at != heard_at)
        assert reader.status.said == ""
    assert len(rings) == 1


def test_figures_wake_neither_a_held_request_nor_the_loop_that_reads_them() -> None:
    hold_seconds, rings = 1.0, list[float]()
    with node("127.0.0.2", hold_seconds=hold_seconds) as peer:
        peer.publish(report())
        wake = partial(rings.append, 1.0)
        with reading("127.0.0.2", peer.port, hold_seconds=hold_seconds, wake=wake) as reader:
            heard(reader)
            time.sleep(0.15)  # the next request is held
            figures = report(memory=MemoryReport(2, 1), gpu=GpuReport("GB10", 600))
            peer.loop.call(partial(peer.peer_api.publish, dump(figures).encode(), wake=False))
            assert until(lambda: heard(reader) == figures) > hold_seconds / 2
            peer.publish(report(message="news"))
            assert until(lambda: heard(reader).message == "news") < hold_seconds / 2
    assert len(rings) == 2


def test_a_quiet_node_gets_one_request_in_the_time_that_it_may_hold_an_answer(peer: Node) -> None:
    requests = []

    async def counting(request: Request) -> Response:
        requests.append(request)
        return await peer.peer_api.handle(request)

    with served("127.0.0.2", counting) as server, reading("127.0.0.2", server.port) as reader:
        heard(reader)
        time.sleep(1.0)
    assert len(requests) <= 1 + 1 / HOLD_SECONDS + 1


@pytest.mark.parametrize("own_address", ["127.0.0.1", "127.0.0.7"])
def test_a_node_requests_from_its_own_address(own_address: str) -> None:
    sources = set()

    def admits(source: str) -> bool:
        sources.add(source)
        return True

    with node("127.0.0.2", admits=admits) as peer:
        peer.publish(report())
        with reading("127.0.0.2", peer.port, own_address=own_address) as reader:
            heard(reader)
    assert sources == {own_address}


def test_keys_change_under_nodes_that_read_each_other_and_no_contact_is_lost() -> None:
    theirs, ours = [KEY], [KEY]
    with node("127.0.0.2", keys=theirs) as peer:
        peer.publish(report())
        with reading("127.0.0.2", peer.port, keys=ours, answer_seconds=10) as reader:
            heard(reader)
            contacts = set()

            def answered_after(moment: float | None) -> bool:
                contacts.add(reader.status.contact)
                return reader.heard_at != moment

            for change, keys in [
                (theirs, [NEW_KEY, KEY]),
                (ours, [NEW_KEY, KEY]),
                (theirs, [KEY]),  # as where this node has the new file first
                (theirs, [KEY, NEW_KEY]),
                (theirs, [NEW_KEY]),
                (ours, [NEW_KEY]),
            ]:
                change[:] = keys
                until(partial(answered_after, reader.heard_at))
            assert contacts == {Contact.ANSWERS}


def test_a_node_that_is_gone_is_noticed_at_once(peer: Node, reader: PeerReader) -> None:
    heard_at, since = reader.heard_at, reader.status.since
    peer.loop.close()
    assert until(lambda: reader.status.contact is Contact.REFUSED) < AT_ONCE_SECONDS
    assert reader.heard_at == heard_at
    assert reader.status.report == report()
    assert reader.status.since > since
    assert reader.status.living is None


def test_a_node_that_came_back_is_another_incarnation(peer: Node, reader: PeerReader) -> None:
    peer.loop.close()
    with node("127.0.0.2", port=peer.port) as successor:
        successor.publish(report(incarnation="new", last_cause="boom (exit 13)"))
        assert until(lambda: heard(reader).incarnation == "new") < AT_ONCE_SECONDS


NODE = """
import sys, time
from tests.unit.nodes import node, report
with node("127.0.0.2") as peer:
    peer.publish(report())
    print(peer.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def node_process() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A node in a process of its own; its port."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def test_a_frozen_node_is_silent_keeps_its_last_report_and_is_heard_again_and_refused_when_killed() -> None:
    with node_process() as (port, process), reading("127.0.0.2", port) as reader:
        heard(reader)
        until(lambda: reader.heard_at is not None)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # what was on its way has come
        heard_at = reader.heard_at
        assert until(lambda: reader.status.contact is Contact.SILENT) < PATIENCE_SECONDS + AT_ONCE_SECONDS
        assert reader.status.said == f"no answer within {PATIENCE_SECONDS:g} s"
        assert reader.heard_at == heard_at
        assert reader.status.report == report()
        process.send_signal(signal.SIGCONT)
        assert until(lambda: reader.status.contact is Contact.ANSWERS) < PATIENCE_SECONDS + AT_ONCE_SECONDS
        process.kill()
        assert until(lambda: reader.status.contact is Contact.REFUSED) < AT_ONCE_SECONDS


def test_one_lost_connection_is_no_silence(peer: Node) -> None:
    lost = iter([False, False, True, False, True, False])  # the first one brings the challenge

    contacts: list[Contact] = []
    with (
        relay("127.0.0.2", peer.port) as pass_on,
        answering("127.0.0.2", lambda request: () if next(lost, False) else (pass_on(request),)) as port,
        reading("127.0.0.2", port, wake=lambda: contacts.append(relayed.status.contact)) as relayed,
    ):
        until(lambda: len(contacts) >= 3)
        assert set(contacts) == {Contact.ANSWERS}


def test_an_own_address_that_is_not_there_is_silence_and_no_refusal() -> None:
    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port, own_address="192.0.2.77") as reader:
        assert contact_of(reader, Contact.SILENT) == "this node's own address 192.0.2.77 is gone"
        assert reader.status.own_address_gone


def test_an_address_that_nobody_routes_to_is_silence_and_no_refusal() -> None:
    with reading("255.255.255.255", 9) as reader:
        assert contact_of(reader, Contact.SILENT) != ""


def test_ipv6_is_read_too() -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this machine has no IPv6")
    with node("::1") as peer:
        peer.publish(report())
        with reading("::1", peer.port, own_address="::1") as reader:
            assert heard(reader) == report()


def fetch_values(reader: PeerReader) -> bytes:
    return asyncio.run(reader.fetch("/plan")).body


def test_a_document_of_a_node_is_fetched_where_it_has_one(peer: Node) -> None:
    with reading("127.0.0.2", peer.port) as reader:
        with pytest.raises(HttpError, match="HTTP 404"):
            fetch_values(reader)
        peer.peer_api.publish_document("/plan", b'{"a":"b"}')
        assert fetch_values(reader) == b'{"a":"b"}'


def test_a_document_is_verified_as_a_report_is() -> None:
    with node("127.0.0.2", keys=[OTHER_KEY]) as other, reading("127.0.0.2", other.port) as reader:
        other.peer_api.publish_document("/plan", b'{"a":"b"}')
        with pytest.raises(UnsignedError):
            fetch_values(reader)


def test_all_nodes_are_read_by_one_thread_and_none_stays_behind() -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        others = [stack.enter_context(node(f"127.0.0.{rank + 1}")) for rank in range(1, 64)]
        for rank, peer in enumerate(others, 1):
            peer.publish(report(rank))
            peer.peer_api.publish_document("/plan", str(rank).encode())
        readers = [
            PeerReader(
                Source(rank, f"127.0.0.{rank + 1}", peer.port, "127.0.0.1", HOLD_SECONDS, ANSWER_SECONDS),
                lambda: (KEY,),
                lambda: None,
            )
            for rank, peer in enumerate(others, 1)
        ]
        assert [reader.status.contact for reader in readers] == [Contact.UNHEARD] * 63
        serving = threading.active_count()
        with network() as loop:
            for reader in readers:
                loop.spawn(reader.run())
            until(lambda: all(reader.status.living for reader in readers))
            assert [reader.status.report for reader in readers] == [report(rank) for rank in range(1, 64)]
            assert loop.submit(readers[2].fetch("/plan")).result().body == b"3"
            assert threading.active_count() == serving + 1
    assert threading.active_count() <= before


def test_a_node_is_named_by_host_and_address_once_its_host_is_known() -> None:
    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port) as reader:
        assert reader.status.name == "127.0.0.2"
        peer.publish(report())
        heard(reader)
        assert reader.status.name == "spark2 (127.0.0.2)"


def test_a_large_report_and_no_small_one_needs_a_thread_beside_the_loop(peer: Node, reader: PeerReader) -> None:
    peer.publish(report(message="old"))
    until(lambda: heard(reader).message == "old")
    with no_more_threads():
        peer.publish(report(message="small"))
        until(lambda: heard(reader).message == "small")
        peer.publish_bytes(dump(report(message="small")).replace("small", "x" * (100 << 10)).encode())
        until(lambda: reader.status.said == "no thread to parse its report: [Errno 11] can't start new thread")
    until(lambda: heard(reader).message.startswith("xxx"))


def test_a_bug_that_ends_a_reader_reaches_its_owner() -> None:
    bug = TypeError("a bug")

    def keys() -> tuple[bytes, ...]:
        raise bug

    errors: list[BaseException] = []
    reader = PeerReader(Source(1, "127.0.0.2", 1, "127.0.0.1", HOLD_SECONDS), keys, lambda: None)
    with network(errors.append) as loop:
        loop.spawn(reader.run())
        until(lambda: bool(errors))
    assert errors == [bug]
