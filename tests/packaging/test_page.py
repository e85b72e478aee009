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

SHOTS = Path(__file__).parents[2] / "build/page"
SIZES, OTHER_WIDTHS = ((390, 844), (800, 1000)), (320, 1440)
TOKEN = "0123456789abcdef" * 2
HEADING = "document.querySelector('h1').textContent"
FOLD = 664
"""Pixels of a phone of 390 x 844 that are seen at once, below and above the browser's own bars."""
HARD_TO_SEE = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
  };
  const worse = (element, colour, least) => {
    const [dark, bright] = [light(parse(colour)), light(behind(element))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05) < least ? [`${element.outerHTML.slice(0, 200)}`] : [];
  };
  const all = (selector) => [...document.querySelectorAll(`main ${selector}`)], style = getComputedStyle;
  return [
    ...all("*")
      .filter((one) => [...one.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()))
      .flatMap((one) => worse(one, style(one).color, 4.5)),
    ...all("path").flatMap((one) => worse(one, style(one).stroke, 3)),
    ...all("rect").flatMap((one) => worse(one, style(one).fill, 3)),
    ...all(".state").flatMap((one) => worse(one, style(one).borderLeftColor, 3)),
  ];
})()"""
"""What is hard to see: WCAG 2.1, 1.4.3 for texts (4.5 to 1) and 1.4.11 for drawings (3 to 1)."""
UNNAMED = """(() => {
  const all = (selector) => [...document.querySelectorAll(selector)], wrong = [];
  const say = (rule, elements) => elements.forEach((one) => wrong.push(`${rule}: ${one.outerHTML.slice(0, 200)}`));
  say("a drawing without a name", all("svg, progress").filter((one) => !one.getAttribute("aria-label")));
  say("a drawing that is no image", all("svg").filter((one) => one.getAttribute("role") !== "img"));
  const levels = all("h1, h2, h3, h4").map((one) => Number(one.localName[1]));
  if (levels.filter((level) => level === 1).length !== 1 || levels[0] !== 1) wrong.push("not one h1, first");
  levels.forEach((level, at) => at && level > levels[at - 1] + 1 && wrong.push(`h${level} behind h${levels[at - 1]}`));
  say("an empty heading", all("h1, h2, h3").filter((one) => !one.textContent.trim()));
  say("a list of others", all("ul > :not(li), dl > :not(div), dl > div > :not(dt, dd)"));
  say("a tab order of its own", all("[tabindex]").filter((one) => one.tabIndex !== 0));
  say("outside of a landmark", all("body > :not(main, footer, script, #offline)"));
  say("a role on a heading", all(":is(h1, h2, h3)[role]"));
  const ids = all("[id]").map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("two elements with one id");
  if (!document.title || document.documentElement.lang !== "en") wrong.push("no title or language");
  return wrong;
})()"""


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
    with Browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.mark.parametrize("name", ["serving", "unreachable", "loading", "broken", "booted", "idle", "hostile"])
def test_the_page_fits_each_screen_without_any_trouble(browser: Browser, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with Site(getattr(page_reports, name)()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        for width in OTHER_WIDTHS:
            browser.resize(width, 900)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
        for width, height in SIZES:
            for dark in (False, True):
                browser.resize(width, height, dark=dark)
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
                assert browser.evaluate(HARD_TO_SEE) == []
                assert browser.evaluate(UNNAMED) == []
                browser.screenshot(SHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        colours = []
        for dark in (False, True):
            browser.resize(*SIZES[0], dark=dark)
            colours.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours[0] != colours[1]
        assert browser.troubles == []


@pytest.mark.parametrize(
    ("name", "last"),
    [("serving", ".state .copy"), ("unreachable", ".do"), ("broken", ".do + p .copy"), ("loading", ".state .quiet")],
)
def test_a_phone_shows_what_to_do_without_scrolling(browser: Browser, name: str, last: str) -> None:
    with Site(getattr(page_reports, name)()).served() as port:
        browser.resize(*SIZES[0])
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.evaluate("document.querySelector('h1').getBoundingClientRect().top") < FOLD / 4
        bottom = browser.evaluate(f"document.querySelector({last!r}).getBoundingClientRect().bottom")
        assert 0 < bottom <= FOLD


def test_the_keyboard_reaches_each_line_to_copy_in_its_order_and_selects_it(browser: Browser) -> None:
    with Site(page_reports.serving()).served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        lines = browser.evaluate("[...document.querySelectorAll('.copy')].map((one) => one.textContent)")
        assert len(lines) == 3
        for line in lines:
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            assert browser.evaluate("document.activeElement.textContent") == line
            assert browser.evaluate("getSelection().toString()") == line
            assert browser.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_text_of_a_report_is_shown_as_text_when_it_comes_and_when_it_changes(browser: Browser) -> None:
    site = Site(page_reports.hostile())
    with site.served() as port:
        browser.open(f"http://127.0.0.1:{port}/")
        shown = page_reports.EVIL[:-2]
        assert shown in browser.evaluate("document.querySelector('main').innerText")
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
        assert browser.evaluate("[...document.querySelectorAll('dd')].map((one) => one.textContent)[0]") == "96.4"
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
        followed = browser.evaluate("document.querySelector('main').innerText")
        browser.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.open(f"http://127.0.0.1:{port}/")
            assert browser.evaluate("document.querySelector('main').innerText") == followed
            assert "every 15 seconds" in browser.evaluate("document.querySelector('footer').innerText")
        finally:
            browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_browser_that_knows_the_password_reads_the_page_and_follows_it(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    site = Site(page_reports.loading(), TokenFile(Files(), str(file), lambda *_: None, os.geteuid()).admits)
    with site.served() as port:
        browser.open(f"http://me:{TOKEN}@127.0.0.1:{port}/")
        assert browser.evaluate(HEADING) == "Loading"
        site.report = page_reports.serving()
        browser.wait_for(f"{HEADING} === 'Serving'")
        assert browser.troubles == []
        assert browser.evaluate("[document.cookie, document.referrer]") == ["", ""]
