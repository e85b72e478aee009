"""Lines of other nodes: who may request them, how many, in which order, and each once."""

import asyncio
import threading
import time
from itertools import takewhile

import psutil
import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, machine, settings
from tests.unit.nodes import KEY, node, reading, served

from sparkd.agent.cluster import log_pages, node_logs
from sparkd.agent.cluster.log_pages import CODEC, LogPage, make_path, parse, parse_query
from sparkd.agent.cluster.node_logs import BusyError, Entry, NewLines, NodeLog, merge, open_logs
from sparkd.base.cluster import auth
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import LATEST_US, MOST_LINES, Line, Lines, Query
from sparkd.base.lib.http_client import HttpClient, HttpError
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.slow_document import SlowDocument


def dump(sent: LogPage) -> bytes:
    return CODEC.encode(sent).encode()


def line(at_us: int, text: str = "agent.phase.changed", place: str = "1", priority: int = 6) -> Line:
    return Line(at_us, place, priority, text)


def page(*lines: Line, node: str = "spark2", ahead_us: int = 0, cut: bool = False) -> LogPage:
    return LogPage(node, time.time_ns() // 1000 + ahead_us, Lines(lines, cut))


@pytest.mark.parametrize("query", [Query(0), Query(LATEST_US, 5, 3, engine=True)])
def test_a_query_travels_in_the_path(query: Query) -> None:
    assert parse_query(make_path(query).partition("?")[2]) == query


@pytest.mark.parametrize(
    "text",
    [
        "",
        "since=1&until=9&priority=3",
        "since=1&priority=3&engine=0",
        "since=-1&until=9&priority=3&engine=0",
        "since=1&until=9&priority=8&engine=0",
        "since=yesterday&until=9&priority=3&engine=0",
        f"since={'9' * 5000}&until=9&priority=3&engine=0",
        f"since={LATEST_US + 1}&until=9&priority=3&engine=0",
        "since=1;reboot&until=9&priority=--file=/etc/shadow&engine=0",
        "since=%D9%A1&until=9&priority=3&engine=0",
        "&".join(["since=1"] * 10_000),
    ],
)
def test_a_text_that_is_no_query_is_refused(text: str) -> None:
    assert parse_query(text) is None


def test_an_answer_of_another_node_is_printable_and_bounded() -> None:
    hostile = LogPage("\x1b]0;x\x07" + "n" * 500, 1, Lines((line(1, "a\x1b[2Jb\nc"),)), "t\n" * 200)
    parsed = parse(dump(hostile))
    assert parsed.lines.lines[0].text == "ab\\nc"
    assert parsed.node.isprintable() and len(parsed.node) <= log_pages.NAME_LIMIT
    assert parsed.trouble.isprintable()
    with pytest.raises(ValueError, match="2000"):
        parse(dump(page(*[line(1)] * (MOST_LINES + 1))))
    for wrong in (b"", b"[]", b'{"schema": 1}', dump(page(line(-1))), dump(page(line(1, "x" * 20_000)))):
        with pytest.raises(ValueError):
            parse(wrong)


def test_lines_are_served_to_nodes_with_the_key_and_to_nobody_else() -> None:
    def read(query: str) -> bytes:
        return dump(page(line(7, "agent.run.failed"))) if parse_query(query) else b""

    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port) as reader:
        peer.peer_api.slow[log_pages.PATH] = SlowDocument("log", read)
        answer = parse(peer.loop.submit(reader.fetch(make_path(Query(0)))).result(5).body)
        assert [line.text for line in answer.lines.lines] == ["agent.run.failed"]
        with pytest.raises(HttpError, match="404"):
            peer.loop.submit(reader.fetch(f"{log_pages.PATH}?since=0")).result(5)
        stranger = HttpClient(f"http://127.0.0.2:{peer.port}")
        assert peer.loop.submit(stranger.request(make_path(Query(0)), 5.0)).result(6).status == 401
        peer.loop.submit(stranger.close()).result(5)


def next_of(log: NodeLog) -> NewLines:
    return asyncio.run(log.read_new(Query(0)))


def test_a_line_is_shown_once_and_requested_from_the_last_time_on() -> None:
    answers = [page(line(5, place="1"), line(7, place="2")), page(line(7, place="2"), line(7, place="3"))]
    requested = list[Query]()

    async def read(query: Query) -> LogPage:
        requested.append(query)
        return answers.pop(0)

    log = NodeLog("10.0.0.2", read)
    assert [entry.line.place for entry in next_of(log)[0]] == ["1", "2"]
    assert [entry.line.place for entry in next_of(log)[0]] == ["3"]
    assert [query.since_us for query in requested] == [0, 7]


def test_the_address_that_was_requested_stands_beside_the_name_that_the_answer_claims() -> None:
    async def read(_query: Query) -> LogPage:
        return page(line(5), node="spark-head")

    names = [next_of(NodeLog(address, read))[0][0].node for address in ("10.0.0.2", "")]
    assert names == ["spark-head (10.0.0.2)", "spark-head"]


@pytest.mark.parametrize(
    ("ahead_us", "shown"), [(75_000_000, 1_000_000), (-75_000_000, 151_000_000), (400_000, 76_000_000)]
)
def test_lines_are_shown_with_times_of_this_nodes_clock(ahead_us: int, shown: int) -> None:
    async def read(_query: Query) -> LogPage:
        return page(line(76_000_000), ahead_us=ahead_us)

    (entry,), _ = next_of(NodeLog("10.0.0.2", read))
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
        assert asyncio.run(read_other(tree, server.port)) == ([], reason)
    assert len(nonces) == requests


def test_connections_to_the_other_nodes_are_closed_at_the_end(tree: Tree) -> None:
    async def read(port: int) -> tuple[list[str], list[bool]]:
        async with open_logs(settings(addresses(2), port), machine(tree, 0)) as ((_, log), trouble):
            assert not trouble
            entries, _ = await log.read_new(Query(0))
            connected = [bool(connections_of(port))]
        return [entry.line.text for entry in entries], [*connected, bool(connections_of(port))]

    def connections_of(port: int) -> list[object]:
        connections = psutil.Process().net_connections("tcp")
        established = [entry for entry in connections if entry.status == psutil.CONN_ESTABLISHED]
        return [entry for entry in established if entry.raddr[1:] == (port,)]

    with node("127.0.0.2") as peer:
        lines = dump(page(line(time.time_ns() // 1000, "agent.run.failed")))
        peer.peer_api.slow[log_pages.PATH] = SlowDocument("log", lambda _: lines)
        assert asyncio.run(read(peer.port)) == (["agent.run.failed"], [True, False])


def test_a_node_that_answers_another_reader_says_so(tree: Tree) -> None:
    go = threading.Event()

    def slow(_query: str) -> bytes:
        go.wait(10)
        return dump(page(line(1)))

    async def read_twice(port: int) -> tuple[NewLines, NewLines]:
        first = asyncio.create_task(read_other(tree, port))
        await asyncio.sleep(0.2)
        second = await read_other(tree, port)
        go.set()
        return await first, second

    with node("127.0.0.2") as peer:
        peer.peer_api.slow[log_pages.PATH] = SlowDocument("log", slow)
        first, second = asyncio.run(read_twice(peer.port))
    assert (len(first[0]), first[1]) == (1, "")
    assert second == ([], "it answers another reader's request")


@pytest.mark.parametrize("busy", [False, True])
def test_a_busy_node_is_requested_again_and_a_silent_one_is_not(busy: bool) -> None:
    tries = list[Query]()

    async def refuse(query: Query) -> LogPage:
        tries.append(query)
        raise (BusyError if busy else HttpError)("no answer")

    began = time.monotonic()
    assert next_of(NodeLog("10.0.0.2", refuse)) == ([], "no answer")
    assert len(tries) == (node_logs.TRIES if busy else 1)
    assert time.monotonic() - began > 0.5 * busy, "the other request has time to end"


def test_lines_behind_a_clock_that_was_set_back_are_shown_once() -> None:
    answers = [page(line(100, place="1"), line(50, place="2"), line(60, place="3"))]
    answers += [page(*answers[0].lines.lines, line(61, place="4"))]

    async def read(_query: Query) -> LogPage:
        return answers.pop(0)

    log = NodeLog("10.0.0.2", read)
    assert [entry.line.place for entry in next_of(log)[0]] == ["1", "2", "3"]
    assert [entry.line.place for entry in next_of(log)[0]] == ["4"]


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


@pytest.mark.parametrize("ahead_us", [-2 * HOUR_US, 0, 500_000, 2 * HOUR_US])
def test_bounds_are_by_this_nodes_clock(ahead_us: int) -> None:
    journal, now_us = OtherJournal(ahead_us), time.time_ns() // 1000
    for minutes in (90, 50, 20, 1):
        journal.write(f"{minutes} min ago", minutes * MINUTE_US)

    def read(query: Query) -> list[str]:
        entries, trouble = asyncio.run(NodeLog("10.0.0.2", journal.read).read_new(query))
        assert not trouble
        return [entry.line.text for entry in entries]

    assert read(Query(now_us - HOUR_US)) == ["50 min ago", "20 min ago", "1 min ago"]
    assert len(journal.queries) == (1 if abs(ahead_us) < node_logs.CLOCK_US else 2), (
        "only another clock costs a request"
    )
    assert journal.queries[-1].until_us == LATEST_US
    assert read(Query(now_us - HOUR_US, now_us - 30 * MINUTE_US)) == ["50 min ago"]


@pytest.mark.parametrize("moved_us", [-2 * HOUR_US, -5 * MINUTE_US, 5 * MINUTE_US])
@pytest.mark.parametrize("ahead_us", [0, HOUR_US])
def test_lines_of_a_clock_that_is_set_between_reads_come_at_once_and_once(ahead_us: int, moved_us: int) -> None:
    journal = OtherJournal(ahead_us)
    log, query = NodeLog("10.0.0.2", journal.read), Query(time.time_ns() // 1000 - HOUR_US)

    def read() -> list[str]:
        return [entry.line.text for entry in asyncio.run(log.read_new(query))[0]]

    for minutes in (8, 4, 0):
        journal.write(f"{minutes}", minutes * MINUTE_US)
    assert read() == ["8", "4", "0"]
    journal.write("just before")
    journal.ahead_us += moved_us
    journal.write("just after")
    assert read() == ["just before", "just after"]
    journal.write("later")
    assert [read(), read()] == [["later"], []]


def test_a_node_without_lines_has_its_clock_set_back() -> None:
    journal = OtherJournal()
    log, query = NodeLog("", journal.read), Query(time.time_ns() // 1000)
    assert asyncio.run(log.read_new(query)) == ([], "")
    journal.ahead_us = -HOUR_US
    journal.write("first")
    assert [entry.line.text for entry in asyncio.run(log.read_new(query))[0]] == ["first"]


def test_a_cut_among_lines_that_were_shown_is_not_named() -> None:
    """A set clock has them sent again, and the oldest of these may be cut."""
    answers = [page(line(1, place="1"), line(2, place="2")), page(line(2, place="2"), line(3, place="3"), cut=True)]

    async def read(_query: Query) -> LogPage:
        return answers.pop(0)

    log = NodeLog("10.0.0.2", read)
    assert [next_of(log)[1], next_of(log)[1]] == ["", ""]


def test_a_node_without_a_place_among_the_others_shows_its_own_lines(tree: Tree) -> None:
    two_nodes = Settings.model_validate({"cluster": {"nodes": ["10.9.0.1", "10.9.0.2"]}})

    async def open_names() -> tuple[list[str], str]:
        async with open_logs(two_nodes, Host(str(tree.root))) as (opened, trouble):
            return [log.address for log in opened], trouble

    names, trouble = asyncio.run(open_names())
    assert names == [""]
    assert "addresses can't be read" in trouble


def test_a_page_that_was_cut_names_what_is_left_out() -> None:
    async def read(_query: Query) -> LogPage:
        return page(line(1), cut=True)

    assert "left out" in next_of(NodeLog("10.0.0.2", read))[1]


def test_lines_of_one_time_stay_in_the_order_of_their_node() -> None:
    first, second = (Entry(5, "spark1", line(5, text)) for text in ("z", "a"))
    early = Entry(3, "spark2", line(3))
    assert merge([[first, second], [early]]) == [early, first, second]
