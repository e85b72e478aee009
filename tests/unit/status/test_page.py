"""The page on the observers' listener: its markup, its policy, and how it is kept up to date."""

import asyncio
import hashlib
import http.client
import json
import re
import shlex
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from html import unescape
from html.parser import HTMLParser

import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.unit import page_reports
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.nodes import network
from tests.unit.verdicts import present

from sparkd.agent.status import page
from sparkd.agent.status.http_api import make_handler
from sparkd.agent.status.page_history import Disk, PageHistory
from sparkd.base.lib.http_connection import Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.state.history import Bench
from sparkd.base.status.model import Contact, FindingReport, NodeReport, PeerStatus, Phase
from sparkd.base.status.publisher import Published


def fetch(report: NodeReport, path: str = "/", beat_age: float = 0.1, kept: PageHistory | None = None) -> Response:
    handle = make_handler(lambda: Published(report, ""), lambda: beat_age, history=kept)
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


def parsed(report: NodeReport, kept: PageHistory | None = None, beat_age: float = 0.1) -> Reader:
    reader = Reader()
    reader.feed(fetch(report, beat_age=beat_age, kept=kept).body.decode())
    return reader


def texts(report: NodeReport, kept: PageHistory | None = None, beat_age: float = 0.1) -> str:
    def walk(node: list[object]) -> list[str]:
        children: list[list[object] | str] = node[2]  # type: ignore[assignment]  # tag, attributes, children
        return [text for child in children for text in ([child] if isinstance(child, str) else walk(child))]

    main = present(parsed(report, kept, beat_age).main)
    return "\n".join(walk(main))


@pytest.mark.parametrize(
    "make", [page_reports.serving, page_reports.loading, page_reports.broken, page_reports.booted, page_reports.hostile]
)
def test_a_browser_without_javascript_gets_what_the_script_builds(make: Callable[[], NodeReport]) -> None:
    report = make()
    sent = json.loads(fetch(report, "/page").body)["report"]
    assert json.loads(json.dumps(parsed(report).main)) == sent


def test_no_text_of_a_report_becomes_markup() -> None:
    reader = parsed(page_reports.hostile())
    plain = parsed(page_reports.serving())
    assert reader.all_tags.count("script") == plain.all_tags.count("script") == 1
    assert {"img", "iframe", "object", "a"}.isdisjoint(reader.all_tags)
    body = fetch(page_reports.hostile()).body.decode()
    assert "<script>window" not in body
    assert "\u202e" not in body
    assert not re.search(r"\son\w+=\"", body)
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
def test_the_first_words_of_the_page_are_whether_the_node_serves(report: NodeReport, tone: str, headline: str) -> None:
    main = present(parsed(report).main)
    _, attributes, ((_, _, (heading,)), *_) = main[2][0]  # type: ignore[index]  # the first child
    assert attributes["class"] == f"state {tone}"
    assert heading[2] == [headline]
    assert f"<title>{headline}: spark1</title>" in fetch(report).body.decode()


def test_a_page_of_a_worker_says_what_the_head_does() -> None:
    head, worker = page_reports.serving(), page_reports.serving().peers[0].report
    assert worker is not None
    peer = replace(page_reports.serving().peers[0], address="10.0.0.1", rank=0, report=replace(head, peers=()))
    assert texts(replace(worker, peers=(peer,))).startswith("Serving\ndeepseek-v4-flash\n, serving for 6 h")
    lost = replace(worker, peers=(replace(peer, contact=Contact.SILENT),))
    assert texts(lost).startswith("Not known: no news of the head")


def test_which_node_is_the_trouble_and_what_to_do_comes_first_and_once() -> None:
    shown = texts(page_reports.broken())
    first = shown.partition("Nodes\n")[0]
    assert "spark2 (10.0.0.2)\n: blocked. unified-memory: 62.0 GiB available, 96.0 GiB needed; pid 4711" in first
    assert "To do on spark2: stop it if it may go\nsudo sparkd preflight --fix 4711\n" in first
    for text in ("pid 4711 (python3) of alice", "sudo sparkd preflight --fix 4711", "To do on"):
        assert shown.count(text) == 1
    assert "spark2: last cause: lower gpu_memory_utilization" in shown.partition("Warnings\n")[2]


def test_no_node_hides_a_warning_of_another() -> None:
    report = page_reports.broken()
    (peer,) = report.peers
    assert peer.report is not None
    short = tuple(replace(finding, reason="", hint="e") for finding in peer.report.findings)
    own = (FindingReport("page-cache", "warn", "4 GiB of page cache", ""),)
    peer = replace(peer, report=replace(peer.report, findings=short))
    assert "page-cache: 4 GiB of page cache" in texts(replace(report, findings=own, peers=(peer,)))


def test_a_head_that_is_degraded_by_another_node_names_that_node_alone() -> None:
    first = texts(page_reports.unreachable()).partition("Nodes\n")[0]
    assert first.count("To do on") == 1
    assert "To do on spark2: look at its power" in first


def lines_to_copy(report: NodeReport) -> list[str]:
    lines = re.findall(r'<code class="copy" tabindex="0">(.*?)</code>', fetch(report).body.decode())
    return [unescape(line) for line in lines]


def blocked_with(hint: str) -> NodeReport:
    finding = FindingReport("memory", "block", "too little", hint)
    return replace(page_reports.broken(), phase=Phase.BLOCKED, findings=(finding,), peers=())


@pytest.mark.parametrize("command", ["sudo sparkd preflight --fix 4711", "sparkd history"])
def test_a_hint_that_ends_with_one_plain_command_has_it_as_a_line_to_copy(command: str) -> None:
    assert lines_to_copy(blocked_with(f"free it: {command}"))[0] == command
    assert lines_to_copy(blocked_with(command))[0] == command


@pytest.mark.parametrize(
    "hint",
    [
        "end it: sudo rm -rf /",
        "end it: sparkd logs; rm -rf /",
        "end it: sparkd logs $(reboot)",
        "end it: sudo sparkd logs `reboot`",
        "end it: sudo sparkd logs | sh",
        "lower gpu_memory_utilization",
    ],
)
def test_any_other_hint_is_text_and_no_line_to_copy(hint: str) -> None:
    report = blocked_with(hint)
    assert lines_to_copy(report) == ["sudo sparkd logs"], "the page's own"
    assert hint in texts(report)


@pytest.mark.parametrize("name", ["m", "deepseek v4", "x'; touch /tmp/evil; '", "$(reboot)", "`reboot`", "a\nb", "ö"])
def test_the_request_to_copy_is_one_command_of_the_shell_whatever_the_model_is_called(name: str) -> None:
    head = page_reports.serving()
    named = replace(head, engine=replace(head.engine, model=name, url="http://[fd00::1]:8000/v1"))
    url, command, *_ = lines_to_copy(named)
    assert url == "http://[fd00::1]:8000/v1"
    *words, body = shlex.split(command)
    headers = ["-H", "Authorization: Bearer $SPARK_API_KEY", "-H", "Content-Type: application/json"]
    assert words == ["curl", "http://[fd00::1]:8000/v1/chat/completions", *headers, "-d"]
    assert json.loads(body)["model"] == name


def test_a_node_that_does_not_serve_has_no_address_to_copy() -> None:
    assert "curl" not in texts(replace(page_reports.serving(), phase=Phase.STOPPING))


@pytest.mark.parametrize("contact", [Contact.REFUSED, Contact.SILENT, Contact.UNSIGNED])
def test_a_node_that_does_not_answer_is_shown_first_with_what_to_do(contact: Contact) -> None:
    peer = replace(page_reports.serving().peers[0], contact=contact)
    first = texts(replace(page_reports.serving(), phase=Phase.DEGRADED, peers=(peer,))).partition("Nodes\n")[0]
    assert "spark2 (10.0.0.2)" in first
    assert "To do on spark2:" in first


def test_a_hanging_agent_is_not_shown_as_serving() -> None:
    assert texts(page_reports.serving(), beat_age=31).startswith("Not known")


def test_figures_of_all_nodes_are_shown() -> None:
    shown = texts(page_reports.serving())
    for figure in (
        "96",
        "1,840",
        "41%",
        "62%",
        "71%",
        "22.4 of 119.7 GiB free",
        "2418 MHz",
        "66 °C",
        "page-cache",
        "peer-lost",
    ):
        assert figure in shown
    assert "loading weights 43%" in texts(page_reports.loading())
    assert "about 6 min left" in texts(page_reports.loading())


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        (b'{"levels":[{"concurrency":1,"output_tokens_per_second":{"median":38},"first_token_seconds":{"median":0.4}}]}',
         "38.0 tokens/s, first token 0.40 s (1 at once)"),
        (b'{"levels":[{"concurrency":1,"output_tokens_per_second":null}]}', "see: sudo sparkd history"),
        (b'{"levels":[{"concurrency":"x","output_tokens_per_second":1}]}', "see: sudo sparkd history"),
        (b'{"levels":{"a":1}}', "see: sudo sparkd history"),
        (b"[1]", "see: sudo sparkd history"),
        (b"{}", "see: sudo sparkd history"),
        (b"null", "see: sudo sparkd history"),
    ],
)  # fmt: skip
def test_a_bench_of_another_version_is_none_that_the_page_shows(figures: bytes, text: str) -> None:
    disk = Disk((Bench("b", page_reports.ago(60), "l", "r", Raw(figures)),))
    assert f"Last bench, 1 min ago: {text}\n" in texts(page_reports.serving(), page_reports.kept(HEAD_REPORT, disk))


def test_the_page_shows_an_hour_a_day_and_the_log() -> None:
    report = page_reports.serving()
    shown = texts(report, page_reports.kept(report))
    for text in ("tokens/s out", "requests", "time to first token", "memory in use", "60 min ago", "24 h ago"):
        assert text in shown
    assert "serving 19 h 42 min, loading 16 min, down 1 min" in shown
    assert "15 min ago: gpu.throttle.detected" in shown
    assert "No smoke yet: \nsudo sparkd smoke\nNo bench yet: \nsudo sparkd bench" in texts(report)
    empty = texts(page_reports.loading())
    assert "yet" not in empty
    assert "24 h" not in empty, "nothing is known, and it was not down"
    new = Disk((page_reports.row(7230, 600, 3600),))
    assert "serving 50 min, loading 10 min, down 1 h 0 min" in texts(report, page_reports.kept(report, new))


def test_a_page_of_eight_nodes_has_a_bounded_size() -> None:
    """With all lists at their ends, and all texts as long as another node's may be."""
    long = tuple(FindingReport(f"id-{number}", "warn", "<" * 1000, "") for number in range(100))
    last = replace(page_reports.serving(), findings=long, last_cause="<" * 1000, message="<" * 1000, peers=())
    peers = (PeerStatus(f"10.0.0.{rank}", rank, Contact.ANSWERS, last.since, last) for rank in range(1, 8))
    report = replace(last, peers=tuple(peers))
    lines = tuple(page_reports.line(60, "<" * 16_000) for _ in range(8))
    loads = tuple(page_reports.row(80000 - 1000 * number, 100, 79500 - 1000 * number) for number in range(30))
    kept = page_reports.kept(report, Disk(loads, lines))
    answer = fetch(report, kept=kept)
    assert "and 750 more" in answer.body.decode()
    assert len(answer.body) < 420_000
    usual = page_reports.serving()
    assert len(fetch(usual, kept=page_reports.kept(usual)).body) < 20_000


def test_a_request_for_news_waits_for_a_change_until_its_hold_ends() -> None:
    current = [HEAD_REPORT]
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
        assert same == first
        assert waited >= page.HOLD_SECONDS
        loop.call(lambda: current.__setitem__(0, replace(HEAD_REPORT, phase=Phase.FAILED)))
        changed, waited = news(known)
        assert waited < page.HOLD_SECONDS / 2, "woken"
        assert changed != first


def test_many_readers_share_a_page_that_is_made_once_a_second() -> None:
    times = []

    def make() -> tuple[str, list[page.Element]]:
        times.append(time.monotonic())
        return "t", [page.element("p", "", str(len(times)))]

    shared = page.Page(make, PageHistory().refresh)

    async def read() -> None:
        await asyncio.gather(*(shared.answer(path, "") for path in ("/", "/page") * 100))

    asyncio.run(read())
    assert len(times) == 1
