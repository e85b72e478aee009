"""The page on `observe.listen`, as HTML for a browser without JavaScript and as JSON for its script.

Both are made from one tree of elements, so that the script has no words and no layout of its own. All text is a text
node in both: nothing of a report becomes markup. The template is one file with style and script, which the
Content-Security-Policy names by their hashes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import json

from sparkd.base.lib.http_connection import Response
from sparkd.base.lib.text import sanitize

TEXT_LIMIT = 2000
PACE_SECONDS = 1.0
"""The page is made at most this often, for all readers together."""
HOLD_SECONDS = 8.0
"""How long an answer is held back while nothing changes; less than the server's own limit."""
_CLOSED = ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_MARK, _TITLE = "<!-- report -->", "<title>sparkd</title>"

Element: TypeAlias = "tuple[str, dict[str, str], list[Element | str]]"
"""Tag, attributes, children."""


def element(tag: str, style: str = "", *children: Element | str, **attributes: str) -> Element:
    """Make an element. `style`: its class. An underscore in an attribute's name stands for a hyphen."""
    cleaned = {name.replace("_", "-"): sanitize(value, TEXT_LIMIT) for name, value in attributes.items()}
    texts = [sanitize(child, TEXT_LIMIT) if isinstance(child, str) else child for child in children if child]
    return tag, ({"class": style} if style else {}) | cleaned, texts


def build_code(text: str) -> Element:
    """A line to copy: a click, or the focus, selects all of it."""
    return element("code", "copy", text, tabindex="0")


def build_svg(label: str, box: str, *shapes: Element) -> Element:
    return element("svg", "", *shapes, role="img", aria_label=label, viewBox=box, preserveAspectRatio="none")


def render_html(node: Element | str) -> str:
    if isinstance(node, str):
        return escape(node)
    tag, attributes, children = node
    rendered_attributes = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{rendered_attributes}>{''.join(map(render_html, children))}</{tag}>"


class Template(NamedTuple):
    before: str
    """The text before the report."""
    after: str
    policy: str
    """Value of the header Content-Security-Policy."""
    digest: str


@cache
def read_template() -> Template:
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    before, after = text.split(_MARK)
    sources = (f"{kind}-src {_hash_inline(text, kind)}" for kind in ("script", "style"))
    policy = "; ".join(("default-src 'none'", *sources, "connect-src 'self'", *_CLOSED))
    return Template(before, after, policy, hashlib.sha256(text.encode()).hexdigest()[:16])


def _hash_inline(text: str, kind: str) -> str:
    """Hash of the only inline script or style, as a Content-Security-Policy names it."""
    (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


class RenderedPage(NamedTuple):
    """The page at one moment."""

    digest: str
    document: bytes
    """HTML for a browser."""
    news: bytes
    """JSON for the script."""
    due: float
    """Until this time, by the monotonic clock, the page is not made again."""


class Page:
    """Belongs to the event loop's thread. `make` returns title and content for now; a request awaits `refresh` once."""

    def __init__(self, make: Callable[[], tuple[str, list[Element]]], refresh: Callable[[], Awaitable[None]]) -> None:
        self._make, self._refresh = make, refresh
        self._rendered: RenderedPage | None = None
        with suppress(OSError, ValueError):  # the page alone fails then
            read_template()  # now: an upgrade may replace it before the first page

    async def answer(self, path: str, known: str) -> Response:
        """The answer to a browser, where `path` is /; else to its script, once the digest is no longer `known`."""
        deadline = time.monotonic() + HOLD_SECONDS
        await self._refresh()
        rendered = self._render_if_due()
        if path == "/":
            headers = (*_HEADERS, ("Content-Security-Policy", read_template().policy))
            return Response(200, rendered.document, "text/html; charset=utf-8", headers)
        while rendered.digest == known and time.monotonic() < deadline:
            await asyncio.sleep(PACE_SECONDS)
            rendered = self._render_if_due()
        return Response(200, rendered.news, headers=_HEADERS)

    def _render_if_due(self) -> RenderedPage:
        now = time.monotonic()
        if self._rendered is None or now >= self._rendered.due:
            self._rendered = _render(*self._make(), due=now + PACE_SECONDS)
        return self._rendered


def _render(title: str, parts: list[Element], due: float) -> RenderedPage:
    template, title = read_template(), sanitize(title, TEXT_LIMIT)
    digest = hashlib.sha256(json.encode((title, parts))).hexdigest()[:16]
    body = element("main", "", *parts, data_digest=digest, data_template=template.digest)
    before = template.before.replace(_TITLE, f"<title>{escape(title)}</title>")
    news = json.encode({"title": title, "template": template.digest, "report": body})
    return RenderedPage(digest, f"{before}{render_html(body)}{template.after}".encode(), news, due)
