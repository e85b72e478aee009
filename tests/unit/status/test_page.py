"""The page on the observers' listener: its markup, its policy, and how it is kept up to date."""

import asyncio
import hashlib
import http.client
import json
import re
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from tests.unit import page_reports
from tests.unit.node_reports import HEAD
from tests.unit.nodes import network

from sparkd.agent.status import page
from sparkd.agent.status.http_api import make_handler
from sparkd.base.lib.http_connection import Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.model import Contact, FindingReport, NodeReport, Phase
from sparkd.base.status.publisher import Published

VOID = ("meta", "link", "br", "img", "input")


def fetch(report: NodeReport, path: str = "/", beat_age: float = 0.1) -> Response:
    handle = make_handler(lambda: Published(report, ""), lambda: beat_age)
    return asyncio.run(handle(Request("127.0.0.1", path, {"host": "localhost"})))


class Reader(HTMLParser):
    """A tree of the elements below `main`, as the script gets it, from the HTML."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.all_tags: list[str] = []
        self.open: list[list[object]] = []
        self.main: list[object] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all_tags.append(tag)
        # The parser of a browser corrects the case of SVG's attributes.
        names = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}
        node: list[object] = [tag, {names.get(name, name): value for name, value in attrs}, []]
        if self.open:
            self.open[-1][2].append(node)  # type: ignore[attr-defined]  # the children
        if tag == "main":
            self.main = node
        if self.open or tag == "main":
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if self.open:
            assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)  # type: ignore[attr-defined]  # the children


def parsed(report: NodeReport) -> Reader:
    reader = Reader()
    reader.feed(fetch(report).body.decode())
    return reader


def texts(report: NodeReport) -> str:
    def walk(node: list[object]) -> list[str]:
        children: list[list[object] | str] = node[2]  # type: ignore[assignment]  # tag, attributes, children
        return [text for one in children for text in ([one] if isinstance(one, str) else walk(one))]

    main = parsed(report).main
    assert main is not None
    return "\n".join(walk(main))


@pytest.mark.parametrize(
    "make", [page_reports.serving, page_reports.loading, page_reports.broken, page_reports.booted, page_reports.hostile]
)
def test_a_browser_without_javascript_gets_what_the_script_builds(make: Callable[[], NodeReport]) -> None:
    report = make()
    sent = json.loads(fetch(report, "/page").body)["report"]
    assert json.loads(json.dumps(parsed(report).main)) == sent


def test_nothing_of_a_report_is_markup() -> None:
    reader = parsed(page_reports.hostile())
    plain = parsed(page_reports.serving())
    assert reader.all_tags.count("script") == plain.all_tags.count("script") == 1
    assert {"img", "iframe", "object", "a"}.isdisjoint(reader.all_tags)
    body = fetch(page_reports.hostile()).body.decode()
    assert "<script>window" not in body
    assert "\u202e" not in body
    assert len(re.findall(r"\son\w+=\"", body)) == 0
    assert page_reports.EVIL[:-2] in texts(page_reports.hostile())


def test_the_policy_admits_the_one_script_and_the_one_style_of_the_page_and_nothing_else() -> None:
    answer = fetch(page_reports.serving())
    text, headers = answer.body.decode(), dict(answer.headers)
    hashes = {}
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        hashes[kind] = b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert headers["Content-Security-Policy"] == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in headers
    assert " style=" not in text
    assert re.findall(r"(?:src|href|action)\s*=", text) == []


@pytest.mark.parametrize(
    ("report", "tone", "headline"),
    [
        (page_reports.serving(), "ok", "Serving"),
        (page_reports.loading(), "wait", "Loading"),
        (page_reports.broken(), "bad", "Not serving"),
        (page_reports.booted(), "ok", "Serving"),
        (replace(page_reports.serving(), phase=Phase.DEGRADED), "warn", "Serving, degraded"),
        (replace(page_reports.serving(), phase=Phase.PREFLIGHT, peers=()), "wait", "Not serving yet"),
        (replace(page_reports.serving(), phase=Phase.FAILED, peers=()), "bad", "Not serving"),
        (replace(page_reports.serving(), phase=Phase.COOLING, peers=()), "bad", "Not serving"),
    ],
)
def test_the_first_words_are_whether_it_serves(report: NodeReport, tone: str, headline: str) -> None:
    main = parsed(report).main
    assert main is not None
    _, attributes, (heading, *_) = main[2][0]  # type: ignore[index]  # the first child
    assert (attributes["class"], heading[2]) == (f"state {tone}", [headline])
    assert f"<title>{headline}: spark1</title>" in fetch(report).body.decode()


def test_a_page_of_a_worker_says_what_the_head_does() -> None:
    head, worker = page_reports.serving(), page_reports.serving().peers[0].report
    assert worker is not None
    peer = replace(page_reports.serving().peers[0], address="10.0.0.1", rank=0, report=replace(head, peers=()))
    assert texts(replace(worker, peers=(peer,))).startswith("Serving\ndeepseek-v4-flash on port 8000\nserving for 6 h")
    lost = replace(worker, peers=(replace(peer, contact=Contact.SILENT),))
    assert texts(lost).startswith("Not known: no news of the head")


def test_which_node_is_the_trouble_and_what_to_do_comes_first() -> None:
    first = texts(page_reports.broken()).partition("Nodes\n")[0]
    assert "spark2 (10.0.0.2)" in first
    assert "62.0 GiB available, 96.0 GiB needed" in first
    assert "To do: stop it if it may go: sudo sparkd preflight --fix 4711" in first


def test_each_warning_has_what_to_do_about_it() -> None:
    warnings = texts(page_reports.broken()).partition("Warnings\n")[2]
    assert "has 41.2 GiB\non spark2: stop it if it may go: sudo sparkd preflight --fix 4711\n" in warnings


@pytest.mark.parametrize("contact", [Contact.REFUSED, Contact.SILENT, Contact.UNSIGNED])
def test_a_node_that_does_not_answer_is_a_trouble_with_an_advice(contact: Contact) -> None:
    peer = replace(page_reports.serving().peers[0], contact=contact)
    first = texts(replace(page_reports.serving(), phase=Phase.DEGRADED, peers=(peer,))).partition("Nodes\n")[0]
    assert "spark2 (10.0.0.2)" in first
    assert "To do: " in first


def test_a_hanging_agent_is_not_shown_as_serving() -> None:
    assert b"<h1>Not known" in fetch(page_reports.serving(), beat_age=31).body


def test_figures_of_all_nodes_are_shown() -> None:
    found = texts(page_reports.serving())
    for needle in ("96", "1,840", "41%", "62%", "71%", "22.4 of 119.7 GiB free", "2418 MHz", "page-cache", "peer-lost"):
        assert needle in found
    assert "loading weights 43%" in texts(page_reports.loading())
    assert "about 6 min left" in texts(page_reports.loading())


def test_findings_without_end_do_not_make_the_page_large() -> None:
    many = tuple(FindingReport(f"id-{number}", "warn", "<" * 1000, "") for number in range(1000))
    answer = fetch(replace(page_reports.serving(), findings=many))
    assert len(answer.body) < 300_000
    assert "and 950 more" in answer.body.decode()


def test_news_are_held_back_until_there_are_some() -> None:
    current = [HEAD]
    handle = make_handler(lambda: Published(current[0], ""), lambda: 0.0)
    limits = Limits(requests_per_second=1e6)
    server = HttpServer("127.0.0.1", 0, handle, limits)
    with network() as loop, closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as client:
        loop.spawn(server.serve())

        def news(known: str) -> tuple[dict[str, object], float]:
            began = time.monotonic()
            client.request("GET", f"/page?known={known}", headers={"Host": "localhost"})
            answer = json.loads(client.getresponse().read())
            return answer, time.monotonic() - began

        first, waited = news("")
        assert waited < page.HOLD_SECONDS / 2
        known = first["report"][1]["data-digest"]  # type: ignore[index]  # attributes
        same, waited = news(known)
        assert (same, waited >= page.HOLD_SECONDS) == (first, True)
        loop.call(lambda: current.__setitem__(0, replace(HEAD, phase=Phase.FAILED)))
        other, waited = news(known)
        assert waited < page.HOLD_SECONDS / 2, "woken"
        assert other != first


def test_however_many_read_it_the_page_is_made_once_a_second() -> None:
    made = []

    def make() -> tuple[str, list[page.Element]]:
        made.append(time.monotonic())
        return "t", [page.element("p", "", str(len(made)))]

    one = page.Page(make)

    async def read() -> None:
        await asyncio.gather(*(one.news("") for _ in range(100)))
        for _ in range(100):
            one.document()

    asyncio.run(read())
    assert len(made) == 1
