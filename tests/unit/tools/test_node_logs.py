"""The journals of all nodes read as one: each line once, in which order, and which requests are repeated."""

import asyncio
import threading
import time
from itertools import takewhile

import psutil
import pytest
from tests.tree import Tree
from tests.unit.cluster.log_lines import line, page
from tests.unit.cluster_nodes import addresses, machine, settings
from tests.unit.nodes import KEY, node, served

from sparkd.agent.cluster import log_pages
from sparkd.agent.cluster.log_pages import CODEC, LogPage
from sparkd.base.cluster import auth
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import LATEST_US, Line, Query
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.slow_document import SlowDocument
from sparkd.tools.support import node_logs
from sparkd.tools.support.node_logs import BusyError, Entry, NewLines, NodeLog, merge, open_logs

ALL = Query(0)


class Answers:
    """A node that answers with these pages, each once."""

    def __init__(self, *pages: LogPage) -> None:
        self.pages, self.queries = list(pages), list[Query]()

    async def read(self, query: Query) -> LogPage:
        self.queries.append(query)
        return self.pages.pop(0)


def read_new(log: NodeLog, query: Query = ALL) -> NewLines:
    return asyncio.run(log.read_new(query))


def new_places(log: NodeLog) -> list[str]:
    return [entry.line.place for entry in read_new(log).entries]


def new_texts(log: NodeLog, query: Query = ALL) -> list[str]:
    return [entry.line.text for entry in read_new(log, query).entries]


def test_a_line_is_shown_once_and_requested_from_the_last_time_on() -> None:
    first, last = page(line(5, place="1"), line(7, place="2")), page(line(7, place="2"), line(7, place="3"))
    answers = Answers(first, last)
    log = NodeLog("10.0.0.2", answers.read)
    assert new_places(log) == ["1", "2"]
    assert new_places(log) == ["3"]
    assert [query.since_us for query in answers.queries] == [0, 7]


@pytest.mark.parametrize(("address", "name"), [("10.0.0.2", "spark-head (10.0.0.2)"), ("", "spark-head")])
def test_the_address_that_was_requested_stands_beside_the_name_that_the_answer_claims(address: str, name: str) -> None:
    (entry,) = read_new(NodeLog(address, Answers(page(line(5), node="spark-head")).read)).entries
    assert entry.node == name


@pytest.mark.parametrize(
    ("ahead_us", "shown"), [(75_000_000, 1_000_000), (-75_000_000, 151_000_000), (400_000, 76_000_000)]
)
def test_lines_are_shown_with_times_of_this_nodes_clock(ahead_us: int, shown: int) -> None:
    answer = page(line(76_000_000), ahead_us=ahead_us)
    (entry,) = read_new(NodeLog("10.0.0.2", Answers(answer, answer).read)).entries
    assert abs(entry.at_us - shown) < 200_000


async def read_other(tree: Tree, port: int) -> NewLines:
    """What the head reads of the other node."""
    async with open_logs(settings(addresses(2), port), machine(tree, 0)) as ((_, log), _):
        return await log.read_new(Query(0))


@pytest.mark.parametrize(
    ("status", "requests", "reason"),
    [
        (503, node_logs.TRIES, "it answers another reader's request"),
        (404, node_logs.TRIES, "HTTP 404: it is busy, or its sparkd is of another version"),
        (400, 1, "HTTP 400: its sparkd may be of another version"),
    ],
)
def test_only_a_status_that_may_mean_busy_is_tried_again(tree: Tree, status: int, requests: int, reason: str) -> None:
    """404 is how earlier versions say busy, and how versions without this document refuse."""
    nonces = list[str]()

    async def handle(request: Request) -> Response:
        nonce = request.headers[auth.NONCE_HEADER.lower()]
        nonces.append(nonce)
        signature = auth.sign_answer(KEY, nonce, "127.0.0.2", request.path, status, b"")
        return Response(status, b"", headers=((auth.SIGNATURE_HEADER, signature),))

    with served("127.0.0.2", handle) as server:
        assert asyncio.run(read_other(tree, server.port)) == NewLines([], reason)
    assert len(nonces) == requests


def test_connections_to_the_other_nodes_are_closed_at_the_end(tree: Tree) -> None:
    def is_connected(port: int) -> bool:
        connections = psutil.Process().net_connections("tcp")
        established = [entry for entry in connections if entry.status == psutil.CONN_ESTABLISHED]
        return any(entry.raddr[1:] == (port,) for entry in established)

    async def read(port: int) -> None:
        async with open_logs(settings(addresses(2), port), machine(tree, 0)) as ((_, log), trouble):
            assert not trouble
            assert len((await log.read_new(Query(0))).entries) == 1
            assert is_connected(port)
        assert not is_connected(port)

    with node("127.0.0.2") as peer:
        lines = CODEC.encode(page(line(time.time_ns() // 1000))).encode()
        peer.peer_api.slow[log_pages.PATH] = SlowDocument("log", lambda _: lines)
        asyncio.run(read(peer.port))


def test_a_node_that_answers_another_reader_says_so(tree: Tree) -> None:
    go = threading.Event()

    def slow(_query: str) -> bytes:
        go.wait(10)
        return CODEC.encode(page(line(1))).encode()

    async def read_twice(port: int) -> None:
        first = asyncio.create_task(read_other(tree, port))
        await asyncio.sleep(0.2)
        assert await read_other(tree, port) == NewLines([], "it answers another reader's request")
        go.set()
        assert len((await first).entries) == 1

    with node("127.0.0.2") as peer:
        peer.peer_api.slow[log_pages.PATH] = SlowDocument("log", slow)
        asyncio.run(read_twice(peer.port))


class Refusals:
    """A node that refuses each request."""

    def __init__(self, error: HttpError) -> None:
        self.error, self.count = error, 0

    async def read(self, _query: Query) -> LogPage:
        self.count += 1
        raise self.error


def test_a_busy_node_is_requested_again_with_time_for_the_other_request_to_end() -> None:
    refusals, began = Refusals(BusyError("no answer")), time.monotonic()
    assert read_new(NodeLog("10.0.0.2", refusals.read)) == NewLines([], "no answer")
    assert refusals.count == node_logs.TRIES
    assert time.monotonic() - began > 0.5


def test_a_node_that_does_not_answer_is_requested_once() -> None:
    refusals = Refusals(HttpError("no answer"))
    assert read_new(NodeLog("10.0.0.2", refusals.read)) == NewLines([], "no answer")
    assert refusals.count == 1


def test_lines_behind_a_clock_that_was_set_back_are_shown_once() -> None:
    lines = line(100, place="1"), line(50, place="2"), line(60, place="3")
    log = NodeLog("10.0.0.2", Answers(page(*lines), page(*lines, line(61, place="4"))).read)
    assert new_places(log) == ["1", "2", "3"]
    assert new_places(log) == ["4"]


class OtherJournal:
    """Another node's journal and clock, which differs from this node's by `ahead_us`."""

    def __init__(self, ahead_us: int = 0) -> None:
        self.ahead_us, self.lines, self.queries = ahead_us, list[Line](), list[Query]()

    def write(self, text: str, ago_us: int = 0) -> None:
        place = str(len(self.lines))
        self.lines.append(line(time.time_ns() // 1000 + self.ahead_us - ago_us, text, place))

    async def read(self, query: Query) -> LogPage:
        """The lines from the newest back to the first that is too old, as journalctl --reverse finds them."""
        self.queries.append(query)
        below = [line for line in self.lines if line.at_us <= query.until_us]
        wanted = list(takewhile(lambda line: line.at_us >= query.since_us, reversed(below)))
        return page(*reversed(wanted), ahead_us=self.ahead_us)


HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000


@pytest.mark.parametrize(("ahead_us", "requests"), [(-2 * HOUR_US, 2), (0, 1), (500_000, 1), (2 * HOUR_US, 2)])
def test_bounds_are_by_this_nodes_clock_and_only_another_clock_costs_a_request(ahead_us: int, requests: int) -> None:
    journal, now_us = OtherJournal(ahead_us), time.time_ns() // 1000
    for minutes in (90, 50, 20, 1):
        journal.write(f"{minutes} min ago", minutes * MINUTE_US)
    texts = new_texts(NodeLog("10.0.0.2", journal.read), Query(now_us - HOUR_US))
    assert texts == ["50 min ago", "20 min ago", "1 min ago"]
    assert len(journal.queries) == requests
    assert journal.queries[-1].until_us == LATEST_US
    bounded = Query(now_us - HOUR_US, now_us - 30 * MINUTE_US)
    assert new_texts(NodeLog("10.0.0.2", journal.read), bounded) == ["50 min ago"]


@pytest.mark.parametrize("moved_us", [-2 * HOUR_US, -5 * MINUTE_US, 5 * MINUTE_US])
@pytest.mark.parametrize("ahead_us", [0, HOUR_US])
def test_lines_of_a_clock_that_is_set_between_reads_come_at_once_and_once(ahead_us: int, moved_us: int) -> None:
    journal = OtherJournal(ahead_us)
    log, query = NodeLog("10.0.0.2", journal.read), Query(time.time_ns() // 1000 - HOUR_US)
    for minutes in (8, 4, 0):
        journal.write(f"{minutes}", minutes * MINUTE_US)
    assert new_texts(log, query) == ["8", "4", "0"]
    journal.write("just before")
    journal.ahead_us += moved_us
    journal.write("just after")
    assert new_texts(log, query) == ["just before", "just after"]
    journal.write("later")
    assert new_texts(log, query) == ["later"]
    assert new_texts(log, query) == []


def test_a_node_without_lines_has_its_clock_set_back() -> None:
    journal = OtherJournal()
    log, query = NodeLog("", journal.read), Query(time.time_ns() // 1000)
    assert new_texts(log, query) == []
    journal.ahead_us = -HOUR_US
    journal.write("first")
    assert new_texts(log, query) == ["first"]


def test_a_cut_among_lines_that_were_shown_is_not_named() -> None:
    """A set clock has them sent again, and the oldest of these may be cut."""
    first, last = page(line(1, place="1"), line(2, place="2")), page(line(2, place="2"), line(3, place="3"), cut=True)
    log = NodeLog("10.0.0.2", Answers(first, last).read)
    assert read_new(log).trouble == ""
    assert read_new(log).trouble == ""


def test_a_page_that_was_cut_names_what_is_left_out() -> None:
    assert "left out" in read_new(NodeLog("10.0.0.2", Answers(page(line(1), cut=True)).read)).trouble


def test_a_node_without_a_place_among_the_others_shows_its_own_lines(tree: Tree) -> None:
    two_nodes = Settings.model_validate({"cluster": {"nodes": ["10.9.0.1", "10.9.0.2"]}})

    async def check_logs() -> None:
        async with open_logs(two_nodes, Host(str(tree.root))) as (opened, trouble):
            assert [log.address for log in opened] == [""]
            assert "addresses can't be read" in trouble

    asyncio.run(check_logs())


def test_lines_of_one_time_stay_in_the_order_of_their_node() -> None:
    first, second = (Entry(5, "spark1", line(5, text)) for text in ("z", "a"))
    early = Entry(3, "spark2", line(3))
    assert merge([[first, second], [early]]) == [early, first, second]
