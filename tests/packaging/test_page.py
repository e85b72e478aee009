"""The page in a browser: Chromium against the real server. `build/page` has what it looked like."""

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.packaging.browser import Browser
from tests.unit import page_reports
from tests.unit.nodes import network

from sparkd.agent.status.http_api import make_handler
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.host.files import Files
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.publisher import Published

SCREENSHOTS = Path(__file__).parents[2] / "build/page"
PHONE, TABLET = (390, 844), (800, 1000)
NARROWEST, WIDEST = (320, 900), (1440, 900)
"""Width and height of screens in pixels."""
SEEN_AT_ONCE_PIXELS = 664
"""The height between the bars of a phone's browser."""
CONTRAST, NAMING = (Path(__file__).with_name(name).read_text() for name in ("contrast.js", "naming.js"))
"""Expressions that list what is hard to see, and what a screen reader stumbles over."""
TOKEN = "0123456789abcdef" * 2
HEADING = "document.querySelector('h1').textContent"
WIDTH = "document.documentElement.scrollWidth"
MakeReport = Callable[[], NodeReport]
each_report = pytest.mark.parametrize(
    "make_report",
    [
        page_reports.serving,
        page_reports.unreachable,
        page_reports.loading,
        page_reports.broken,
        page_reports.booted,
        page_reports.idle,
        page_reports.hostile,
    ],
)
"""The names of these functions are the tests' ids."""


class Site:
    """The page of a report, which a test may change."""

    def __init__(self, report: NodeReport, admits: Callable[[str], Awaitable[bool]] | None = None) -> None:
        self.report = report
        self._handle = make_handler(lambda: Published(self.report, ""), lambda: 0.0, admits, page_reports.kept(report))

    @contextmanager
    def served(self, port: int = 0) -> Iterator[int]:
        server = HttpServer("127.0.0.1", port, self._handle)
        with network() as loop:
            loop.spawn(server.serve())
            yield server.port


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@each_report
def test_the_page_fits_each_screen(browser: Browser, make_report: MakeReport) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with Site(make_report()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        for width, height in (NARROWEST, PHONE, TABLET, WIDEST):
            for scheme in ("light", "dark"):
                browser.resize(width, height, dark=scheme == "dark")
                assert browser.evaluate(WIDTH) <= width
                if (width, height) in (PHONE, TABLET):
                    browser.screenshot(SCREENSHOTS / f"{make_report.__name__}-{width}-{scheme}.png")
        assert browser.troubles == []


@each_report
def test_all_of_the_page_is_easy_to_see_and_has_a_name(browser: Browser, make_report: MakeReport) -> None:
    with Site(make_report()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        for width, height in (PHONE, TABLET):
            for dark in (False, True):
                browser.resize(width, height, dark=dark)
                assert browser.evaluate(CONTRAST) == []
                assert browser.evaluate(NAMING) == []


@pytest.mark.parametrize(
    ("selector", "colour", "tag"),
    [
        pytest.param("h1", "color", "h1", id="text"),
        pytest.param("path", "stroke", "path", id="curve"),
        pytest.param("rect", "fill", "rect", id="timeline"),
        pytest.param(".state", "borderLeftColor", "section", id="border"),
    ],
)
def test_grey_on_grey_is_found(browser: Browser, selector: str, colour: str, tag: str) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.resize(*PHONE)
        browser.open(f"http://127.0.0.1:{port}/")
        greyed = (
            f"Object.assign(document.querySelector('main {selector}').style, {{{colour}: '#888', background: '#999'}})"
        )
        findings = browser.evaluate(f"{greyed};\n{CONTRAST}")
    assert [finding for finding in findings if finding.startswith(f"<{tag}")]


@pytest.mark.parametrize(
    ("change", "beginning"),
    [
        pytest.param(
            "document.querySelector('svg').removeAttribute('aria-label')",
            "a drawing without a name: <svg",
            id="a nameless drawing",
        ),
        pytest.param(
            "document.querySelector('progress').removeAttribute('aria-label')",
            "a drawing without a name: <progress",
            id="a nameless bar",
        ),
        pytest.param(
            "document.querySelector('svg').removeAttribute('role')",
            "a drawing that is no image: <svg",
            id="a drawing that is no image",
        ),
        pytest.param(
            "document.querySelector('main').prepend(document.createElement('h2'))",
            "not one h1, first",
            id="a heading before h1",
        ),
        pytest.param(
            "document.querySelector('h3').replaceWith(document.createElement('h4'))",
            "h4 behind h2",
            id="a level left out",
        ),
        pytest.param("document.querySelector('h2').textContent = ' '", "an empty heading: <h2", id="an empty heading"),
        pytest.param(
            "document.querySelector('ul').append(document.createElement('p'))",
            "a list of others: <p",
            id="a paragraph in ul",
        ),
        pytest.param(
            "document.querySelector('dl').append(document.createElement('dt'))",
            "a list of others: <dt",
            id="a term in dl",
        ),
        pytest.param(
            "document.querySelector('dl > div').append(document.createElement('p'))",
            "a list of others: <p",
            id="a paragraph in dl",
        ),
        pytest.param("document.querySelector('.copy').tabIndex = 1", "a tab order of its own: <code", id="a tab order"),
        pytest.param(
            "document.body.append(document.createElement('p'))", "outside of a landmark: <p", id="no landmark"
        ),
        pytest.param(
            "document.querySelector('h1').setAttribute('role', 'status')", "a role on a heading: <h1", id="a role on h1"
        ),
        pytest.param("document.querySelector('h1').id = 'offline'", "two elements with one id", id="an id twice"),
        pytest.param("document.title = ''", "no title or language", id="no title"),
        pytest.param("document.documentElement.lang = ''", "no title or language", id="no language"),
    ],
)
def test_what_a_screen_reader_stumbles_over_is_found(browser: Browser, change: str, beginning: str) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        findings = browser.evaluate(f"{change};\n{NAMING}")
    assert [finding for finding in findings if finding.startswith(beginning)]


def test_the_page_is_dark_where_the_system_is(browser: Browser) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.resize(*PHONE, dark=False)
        light = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.resize(*PHONE, dark=True)
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != light


@pytest.mark.parametrize(
    ("make_report", "selector"),
    [
        pytest.param(page_reports.serving, ".state .copy", id="serving, the address"),
        pytest.param(page_reports.unreachable, ".do", id="unreachable, the advice"),
        pytest.param(page_reports.broken, ".do + p .copy", id="broken, the command"),
        pytest.param(page_reports.loading, ".state .quiet", id="loading, that nothing is to be done"),
    ],
)
def test_a_phone_shows_what_to_do_without_scrolling(browser: Browser, make_report: MakeReport, selector: str) -> None:
    with Site(make_report()).served() as port:
        browser.resize(*PHONE)
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.evaluate("document.querySelector('h1').getBoundingClientRect().top") < SEEN_AT_ONCE_PIXELS / 4
        bottom = browser.evaluate(f"document.querySelector('{selector}').getBoundingClientRect().bottom")
        assert 0 < bottom <= SEEN_AT_ONCE_PIXELS


def test_the_keyboard_reaches_each_line_to_copy_in_its_order_and_selects_it(browser: Browser) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        lines = browser.evaluate("[...document.querySelectorAll('.copy')].map((element) => element.textContent)")
        assert len(lines) == 3
        for line in lines:
            for event in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=event, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            assert browser.evaluate("document.activeElement.textContent") == line
            assert browser.evaluate("getSelection().toString()") == line
            assert browser.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_text_of_a_report_is_shown_as_text_when_it_comes_and_when_it_changes(browser: Browser) -> None:
    site = Site(page_reports.hostile())
    with site.served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        text = page_reports.EVIL[:-2]  # without the surrogate and the mark of direction
        assert text in browser.evaluate("document.querySelector('main').innerText")
        site.report = replace(page_reports.hostile(), phase=Phase.FAILED, message=f"changed {page_reports.EVIL}")
        browser.wait_for("document.querySelector('main').innerText.includes('changed </main>')")
        assert browser.evaluate("[window.evil, document.querySelectorAll('main img, main script').length]") == [None, 0]
        assert browser.evaluate("document.querySelectorAll('main').length") == 1
        assert browser.troubles == []


def test_a_violation_of_the_policy_would_be_seen(browser: Browser) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.evaluate("""document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.evil=1'>")""")
        time.sleep(0.3)
        assert browser.evaluate("window.evil") is None
    assert "Content Security Policy" in str(browser.troubles)


def test_the_page_follows_the_node_through_a_restart_without_being_loaded_again(browser: Browser) -> None:
    site = Site(page_reports.loading())
    with site.served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.evaluate(HEADING) == "Loading"
        browser.evaluate("window.kept = document.querySelector('h1')")
        site.report = page_reports.serving()
        browser.wait_for(f"{HEADING} === 'Serving'")
        assert browser.evaluate("document.title") == "Serving: spark1"
        assert browser.evaluate("document.querySelector('dd').textContent") == "96.4"
        # An element of SVG that the script has made is drawn like one of the static page.
        assert browser.evaluate("document.querySelector('path').getBoundingClientRect().width") > 100
        assert browser.troubles == []
    browser.wait_for("document.getElementById('offline').checkVisibility()")
    assert "what is shown is old" in browser.evaluate("document.getElementById('offline').innerText")
    site.report = page_reports.broken()
    with site.served(port):
        browser.wait_for(f"{HEADING} === 'Not serving'")
        assert not browser.evaluate("document.getElementById('offline').checkVisibility()")
        assert browser.evaluate("window.kept === document.querySelector('h1')")


def test_without_javascript_the_page_shows_the_same(browser: Browser) -> None:
    site = Site(page_reports.serving())
    with site.served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        with_script = browser.evaluate("document.querySelector('main').innerText")
        browser.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.open(f"http://127.0.0.1:{port}/")
            assert browser.evaluate("document.querySelector('main').innerText") == with_script
            assert "every 15 seconds" in browser.evaluate("document.querySelector('footer').innerText")
        finally:
            browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_browser_that_knows_the_password_reads_the_page_and_follows_it(browser: Browser, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    token = TokenFile(Files(owner_uid=os.geteuid()), str(token_file), lambda *_: None)
    site = Site(page_reports.loading(), token.admits)
    with site.served() as port:
        browser.open(f"http://me:{TOKEN}@127.0.0.1:{port}/")
        assert browser.evaluate(HEADING) == "Loading"
        site.report = page_reports.serving()
        browser.wait_for(f"{HEADING} === 'Serving'")
        assert browser.troubles == []
        assert browser.evaluate("[document.cookie, document.referrer]") == ["", ""]
