"""Pages of a journal: their requests, what is taken of an answer, and who gets one."""

import pytest
from tests.unit.cluster.log_lines import line, page
from tests.unit.nodes import node, reading

from sparkd.agent.cluster.log_pages import CODEC, NAME_LIMIT, PATH, LogPage, make_path, parse, parse_query
from sparkd.base.host.journal import LATEST_US, MOST_LINES, Lines, Query
from sparkd.base.lib.http_client import HttpClient, HttpError
from sparkd.base.lib.slow_document import SlowDocument


def dump(sent: LogPage) -> bytes:
    return CODEC.encode(sent).encode()


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
    assert parsed.node.isprintable()
    assert len(parsed.node) <= NAME_LIMIT
    assert parsed.trouble.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"schema": 1}',
        dump(page(line(-1))),
        dump(page(line(1, "x" * 20_000))),
        dump(page(*[line(1)] * (MOST_LINES + 1))),
    ],
    ids=["empty", "list", "no page", "time", "long line", "many lines"],
)
def test_an_answer_out_of_bounds_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse(body)


def test_lines_are_served_to_nodes_with_the_key_and_to_nobody_else() -> None:
    def read(query: str) -> bytes:
        return dump(page(line(7, "agent.run.failed"))) if parse_query(query) else b""

    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port) as reader:
        peer.peer_api.slow[PATH] = SlowDocument("log", read)
        answer = parse(peer.loop.submit(reader.fetch(make_path(Query(0)))).result(5).body)
        assert [line.text for line in answer.lines.lines] == ["agent.run.failed"]
        with pytest.raises(HttpError, match="404"):
            peer.loop.submit(reader.fetch(f"{PATH}?since=0")).result(5)
        stranger = HttpClient(f"http://127.0.0.2:{peer.port}")
        assert peer.loop.submit(stranger.request(make_path(Query(0)), 5.0)).result(6).status == 401
        peer.loop.submit(stranger.close()).result(5)
