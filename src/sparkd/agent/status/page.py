"""The page on `observe.listen`, as HTML for a browser without JavaScript and as JSON for its script.

Both are made from one tree of elements, so that words and layout are here alone. All text is a text node in either:
nothing of a report becomes markup. The template is one file: style and script are in it, and the policy names both by
their hashes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import json

from sparkd.base.lib.http_connection import Response
from sparkd.base.lib.text import sanitize

TEXT_LIMIT = 2000
PACE_SECONDS = 1.0
"""The page is made at most this often, for all who read it."""
HOLD_SECONDS = 8.0
"""An answer is held back so long where nothing changes; less than the server's own limit."""
_CLOSED = ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_MARK, _TITLE = "<!-- report -->", "<title>sparkd</title>"

Element: TypeAlias = "tuple[str, dict[str, str], list[Element | str]]"


def element(tag: str, style: str = "", *children: Element | str, **attributes: str) -> Element:
    """`style`: its class. An underscore in an attribute's name stands for a hyphen."""
    named = {name.replace("_", "-"): sanitize(value, TEXT_LIMIT) for name, value in attributes.items()}
    texts = [sanitize(child, TEXT_LIMIT) if isinstance(child, str) else child for child in children if child]
    return tag, ({"class": style} if style else {}) | named, texts


def html(node: Element | str) -> str:
    if isinstance(node, str):
        return escape(node)
    tag, attributes, children = node
    named = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{named}>{''.join(map(html, children))}</{tag}>"


class Template(NamedTuple):
    before: str
    after: str
    policy: str
    digest: str


@cache
def read_template() -> Template:
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    before, after = text.split(_MARK)
    sources = (f"{kind}-src {_hash(text, kind)}" for kind in ("script", "style"))
    policy = "; ".join(("default-src 'none'", *sources, "connect-src 'self'", *_CLOSED))
    return Template(before, after, policy, hashlib.sha256(text.encode()).hexdigest()[:16])


def _hash(text: str, kind: str) -> str:
    """Hash of the only inline script or style, as a Content-Security-Policy names it."""
    (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
    return f"'sha256-{b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


class Made(NamedTuple):
    """The page at one moment: for a browser, and as JSON for the script. Until `due` it is not made again."""

    digest: str
    document: bytes
    news: bytes
    due: float


class Page:
    """Belongs to the loop's thread. `make` returns title and content of the page now; `refresh` is awaited before."""

    def __init__(self, make: Callable[[], tuple[str, list[Element]]], refresh: Callable[[], Awaitable[None]]) -> None:
        self._make, self._refresh = make, refresh
        self._made: Made | None = None

    async def answer(self, path: str, known: str) -> Response:
        """`/`: for a browser. Else for its script, as soon as it is another page than that with the digest `known`."""
        end = time.monotonic() + HOLD_SECONDS
        await self._refresh()
        made = self._current()
        if path == "/":
            headers = (*_HEADERS, ("Content-Security-Policy", read_template().policy))
            return Response(200, made.document, "text/html; charset=utf-8", headers)
        while made.digest == known and time.monotonic() < end:
            await asyncio.sleep(PACE_SECONDS)
            made = self._current()
        return Response(200, made.news, headers=_HEADERS)

    def _current(self) -> Made:
        now = time.monotonic()
        if self._made is None or now >= self._made.due:
            self._made = _made(*self._make(), due=now + PACE_SECONDS)
        return self._made


def _made(title: str, parts: list[Element], due: float) -> Made:
    template, title = read_template(), sanitize(title, TEXT_LIMIT)
    digest = hashlib.sha256(json.encode((title, parts))).hexdigest()[:16]
    body = element("main", "", *parts, data_digest=digest, data_template=template.digest)
    before = template.before.replace(_TITLE, f"<title>{escape(title)}</title>")
    news = json.encode({"title": title, "template": template.digest, "report": body})
    return Made(digest, f"{before}{html(body)}{template.after}".encode(), news, due)
