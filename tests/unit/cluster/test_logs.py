"""Lines of other nodes: who may request them, how much, what is shown once, and which failure is the first."""

import asyncio
import threading
import time

import pytest
from tests.tree import Tree
from tests.unit.nodes import node, reading

from sparkd.agent.cluster import logs
from sparkd.agent.cluster.logs import BusyError, Entry, Marks, NodeLog, Page, dump, make_path, merge, parse, parse_query
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.journal import LATEST_US, MOST_LINES, Line, Lines, Query
from sparkd.base.lib.http_client import HttpClient, HttpError
from sparkd.base.lib.slow_document import SlowDocument


def line(at_us: int, text: str = "agent.phase.changed", place: str = "1", priority: int = 6) -> Line:
    return Line(at_us, place, priority, text)


def page(*lines: Line, node: str = "spark2", ahead_us: int = 0, cut: bool = False) -> Page:
    return Page(node, time.time_ns() // 1000 + ahead_us, Lines(lines, cut))


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
def test_anything_else_is_no_query(text: str) -> None:
    assert parse_query(text) is None


def test_an_answer_of_another_node_is_printable_and_bounded() -> None:
    hostile = Page("\x1b]0;x\x07" + "n" * 500, 1, Lines((line(1, "a\x1b[2Jb\nc"),)), "t\n" * 200)
    found = parse(dump(hostile))
    assert found.lines.lines[0].text == "ab\\nc"
    assert found.node.isprintable() and len(found.node) <= logs.NAME_LIMIT
    assert found.trouble.isprintable()
    with pytest.raises(ValueError, match="2000"):
        parse(dump(page(*[line(1)] * (MOST_LINES + 1))))
    for wrong in (b"", b"[]", b'{"schema": 1}', dump(page(line(-1))), dump(page(line(1, "x" * 20_000)))):
        with pytest.raises(ValueError):
            parse(wrong)


def test_one_request_at_a_time_is_answered() -> None:
    go, read = threading.Event(), list[str]()

    def slow(query: str) -> bytes:
        read.append(query)
        go.wait(10)
        return b"lines"

    async def read_all() -> list[bytes | None]:
        server = SlowDocument("log", slow)
        first = asyncio.create_task(server.get("one"))
        await asyncio.sleep(0.05)
        second = await server.get("another")
        go.set()
        return [await first, second, await server.get("one")]

    assert asyncio.run(read_all()) == [b"lines", None, b"lines"]
    assert read == ["one", "one"]


def test_lines_are_served_to_nodes_with_the_key_and_to_nobody_else() -> None:
    def read(query: str) -> bytes:
        return dump(page(line(7, "agent.run.failed"))) if parse_query(query) else b""

    with node("127.0.0.2") as served, reading("127.0.0.2", served.port) as reader:
        served.peer_api.slow[logs.PATH] = SlowDocument("log", read)
        found = parse(served.loop.submit(reader.fetch(make_path(Query(0)))).result(5))
        assert [one.text for one in found.lines.lines] == ["agent.run.failed"]
        with pytest.raises(HttpError, match="404"):
            served.loop.submit(reader.fetch(f"{logs.PATH}?since=0")).result(5)
        stranger = HttpClient(f"http://127.0.0.2:{served.port}")
        assert served.loop.submit(stranger.request(make_path(Query(0)), 5.0)).result(6).status == 401
        served.loop.submit(stranger.close()).result(5)


def next_of(log: NodeLog) -> tuple[list[Entry], str]:
    return asyncio.run(log.next(Query(0)))


def test_a_line_is_shown_once_and_requested_from_the_last_time_on() -> None:
    answers = [page(line(5, place="1"), line(7, place="2")), page(line(7, place="2"), line(7, place="3"), line(6))]
    requested = list[Query]()

    async def read(query: Query) -> Page:
        requested.append(query)
        return answers.pop(0)

    log = NodeLog("10.0.0.2", read)
    assert [entry.line.place for entry in next_of(log)[0]] == ["1", "2"]
    assert [entry.line.place for entry in next_of(log)[0]] == ["3"]
    assert [one.since_us for one in requested] == [0, 7]


def test_the_address_that_was_requested_stands_beside_the_name_that_the_answer_claims() -> None:
    async def read(_query: Query) -> Page:
        return page(line(5), node="spark-head")

    assert [next_of(NodeLog(name, read))[0][0].node for name in ("10.0.0.2", "")] == [
        "spark-head (10.0.0.2)",
        "spark-head",
    ]


@pytest.mark.parametrize(
    ("ahead_us", "shown"), [(75_000_000, 1_000_000), (-75_000_000, 151_000_000), (400_000, 76_000_000)]
)
def test_times_are_those_of_this_nodes_clock(ahead_us: int, shown: int) -> None:
    async def read(_query: Query) -> Page:
        return page(line(76_000_000), ahead_us=ahead_us)

    (entry,), _ = next_of(NodeLog("10.0.0.2", read))
    assert abs(entry.at_us - shown) < 200_000


@pytest.mark.parametrize("busy", [False, True])
def test_a_node_that_answers_another_is_requested_again_and_a_silent_one_named(busy: bool) -> None:
    tries = list[Query]()

    async def refuse(query: Query) -> Page:
        tries.append(query)
        raise (BusyError if busy else HttpError)("no answer")

    assert next_of(NodeLog("10.0.0.2", refuse)) == ([], "no answer")
    assert len(tries) == (logs.TRIES if busy else 1)


def test_lines_behind_a_clock_that_was_set_back_are_shown_once() -> None:
    answers = [page(line(100, place="1"), line(50, place="2"), line(60, place="3"))]
    answers += [page(*answers[0].lines.lines, line(61, place="4"))]

    async def read(_query: Query) -> Page:
        return answers.pop(0)

    log = NodeLog("10.0.0.2", read)
    assert [entry.line.place for entry in next_of(log)[0]] == ["1", "2", "3"]
    assert [entry.line.place for entry in next_of(log)[0]] == ["4"]


def test_this_nodes_lines_are_there_where_it_has_no_place_among_the_others(tree: Tree) -> None:
    settings = Settings.model_validate({"cluster": {"nodes": ["10.9.0.1", "10.9.0.2"]}})
    opened, trouble = logs.open_logs(settings, Host(str(tree.root)))
    assert [one.name for one in opened] == [""]
    assert "addresses can't be read" in trouble


def test_what_was_left_out_is_said() -> None:
    async def read(_query: Query) -> Page:
        return page(line(1), cut=True)

    assert "left out" in next_of(NodeLog("10.0.0.2", read))[1]


OUT_OF_MEMORY = "engine| torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def test_lines_of_one_time_stay_in_the_order_of_their_node() -> None:
    one, other = (Entry(5, "spark1", line(5, text)) for text in ("z", "a"))
    early = Entry(3, "spark2", line(3))
    assert merge([[one, other], [early]]) == [early, one, other]


def judged(*texts: str) -> list[tuple[bool, bool]]:
    marks = Marks()
    found = (marks.judge(line(1, text)) for text in texts)
    return [(known is not None, first) for known, first in found]


def test_the_first_failure_since_service_is_marked() -> None:
    assert judged(
        "agent.phase.changed phase=loading",
        OUT_OF_MEMORY,
        OUT_OF_MEMORY,
        "agent.run.failed code=13 reason='the engine ended'",
        "engine.readiness.reached seconds=90",
        "agent.run.failed code=14 reason='rank 1 is gone'",
    ) == [(False, False), (True, True), (True, False), (False, False), (False, False), (False, True)]


def test_events_as_json_are_marked_too() -> None:
    assert judged(
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "engine.readiness.reached", "seconds": 90}',
        'engine| {"event": "agent.run.failed", "code": 14}',
        '{"event": "agent.run.failed", "code": 14}',
    ) == [(False, True), (False, False), (False, False), (False, False), (False, True)]


def test_a_client_can_end_no_failure_and_begin_no_event() -> None:
    assert judged(OUT_OF_MEMORY, "engine| engine.readiness.reached x", "engine| agent.run.failed x", OUT_OF_MEMORY) == [
        (True, True),
        (False, False),
        (False, False),
        (True, False),
    ]
