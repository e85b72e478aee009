"""The read-only HTTP API for people and monitors on `observe.listen`; `/metrics` is for Prometheus."""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from ipaddress import ip_address
from math import ceil
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sparkd.agent.status.kept import PageHistory
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.http_connection import Handler, Request, Response
from sparkd.base.lib.slow_document import SlowDocument
from sparkd.base.lib.text import sanitize
from sparkd.base.status.bounds import TEXT_LIMIT
from sparkd.base.status.model import IN_SERVICE, NodeReport, Phase, load_seconds_left
from sparkd.base.status.publisher import Published

if TYPE_CHECKING:
    from sparkd.agent.status.page import Page

BEAT_LIMIT_SECONDS = 30.0
"""A main loop that has not turned for so long hangs: it turns at least every ten seconds."""
RETRY_SECONDS = 10
"""Retry-After, where nothing better is known."""
RETRIES = {Phase.LAUNCHING: 60, Phase.LOADING: 60, Phase.COOLING: 60, Phase.BLOCKED: 30, Phase.STOPPED: 60}
"""The same for phases from which a start takes longer. A load of 149 GB takes minutes; a blocked node is examined every
5 s, and then has to load."""
PROBES = ("/livez", "/readyz")
"""Paths for load balancers. They need no token; without it the answer is one word."""
PATHS = ("/", *PROBES, "/metrics", "/report")
TEXT = "text/plain; charset=utf-8"


def make_handler(
    published: Callable[[], Published],
    beat_age: Callable[[], float],
    admits: Callable[[str], Awaitable[bool]] | None = None,
    kept: PageHistory | None = None,
) -> Handler:
    """Make the handler of requests, which runs in the event loop's thread.

    `beat_age`: seconds since the agent's main loop last turned. `admits`: whether an Authorization header has the
    token; None where none is needed. `kept`: what the page shows besides the report.
    """

    history = kept or PageHistory()

    @cache
    def page() -> Page:
        # Imported at the first page: 7 ms of CPU and half a MiB that a node without readers does not need.
        from sparkd.agent.status.page import Page
        from sparkd.agent.status.page_content import build_page
        from sparkd.base.status.view import View

        def view() -> View:
            return View(datetime.now(UTC), alive=beat_age() <= BEAT_LIMIT_SECONDS)

        return Page(lambda: build_page(published().report, view(), history), history.refresh)

    async def handle(request: Request) -> Response:
        (path, _, query), (report, text) = request.path.partition("?"), published()
        if admits is None:
            if not _is_own_name(request.headers.get("host", ""), report.node):
                # The host name of a foreign page may resolve to this machine: then its script could read from here.
                return _answer(403, f"use the IP address, localhost or {report.node}\n")
        elif not await admits(request.headers.get("authorization", "")):
            if path not in PROBES:
                return _answer(401, "the token of observe.token_file is needed\n")._replace(headers=(CHALLENGE,))
            response = answer(path, replace(report, message=""), "")
            # A stranger may not keep its connection open.
            return response._replace(headers=(*response.headers, ("Connection", "close")))
        if path in ("/", "/page"):
            return await page().answer(path, query.removeprefix("known="))
        return answer(path, report, text)

    def answer(path: str, report: NodeReport, text: str) -> Response:
        age_seconds = beat_age()
        if path in PROBES and age_seconds > BEAT_LIMIT_SECONDS:  # the phase in the report is as old
            return _answer(
                503, f"the agent's main loop has not turned for {age_seconds:.0f} s\n", retry_seconds=RETRY_SECONDS
            )
        match path:
            case "/livez":
                return _answer(200, "ok\n")
            case "/readyz":
                return _answer_readiness(report)
            case "/metrics":
                from sparkd.agent.status.metrics import render_metrics

                return _answer(200, *render_metrics(report, datetime.now(UTC)))
            case "/report":
                return _answer(200, text, "application/json")
        return _answer(404, f"here are {', '.join(PATHS)}\n")

    return handle


def _answer_readiness(report: NodeReport) -> Response:
    """The answer to load balancers. A 503 says what is awaited, and in Retry-After when to try again."""
    if report.phase in IN_SERVICE:
        return _answer(200, f"{report.phase.value}\n")
    awaited = f": {sanitize(report.message, TEXT_LIMIT)}" if report.message else ""
    return _answer(503, f"{report.phase.value}{awaited}\n", retry_seconds=retry_seconds(report, datetime.now(UTC)))


def retry_seconds(report: NodeReport, now: datetime) -> int:
    """Time until this node may serve: by earlier loads, else by the step's own estimate, else by the phase."""
    load_seconds, step_seconds = load_seconds_left(report.engine, now), report.engine.seconds_left
    left_seconds = load_seconds if load_seconds is not None and load_seconds > 0 else step_seconds
    if report.phase is Phase.LOADING and left_seconds is not None:
        return ceil(min(max(left_seconds, 1), 3600))
    return RETRIES.get(report.phase, RETRY_SECONDS)


def _answer(status: int, body: str, content_type: str = TEXT, *, retry_seconds: int | None = None) -> Response:
    # A name may hold a part of a character, which can't be encoded.
    content = body.encode("utf-8", "backslashreplace")
    retry = (("Retry-After", str(retry_seconds)),) if retry_seconds else ()
    return Response(status, content, content_type, (("X-Content-Type-Options", "nosniff"), *retry))


def _is_own_name(host: str, node: str) -> bool:
    """Whether a Host header surely means this machine: localhost, its own name, or any IP address."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    if name.lower() in ("localhost", node.lower()):
        return True
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


TOKEN_LIMIT_BYTES = 4096
FRESH_SECONDS = 0.5
"""Longest time until a new token counts."""
CHALLENGE = ("WWW-Authenticate", 'Basic realm="sparkd", charset="UTF-8"')
"""With this a browser asks for the password by itself, also without JavaScript."""  # words: keep
_TOKEN = re.compile(rb"[!-~]{16,512}")
_CREATION_HINT = "(umask 077; openssl rand -hex 32 >{path})"


class TokenFile:
    """The token of observe.token_file. Without a good file nobody is admitted.

    `on_trouble` gets reason and hint, from any thread, once as long as the reason stays the same.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        on_trouble: Callable[[str, str], object],
        owner_uid: int = 0,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._files, self._path, self._owner_uid = files, path, owner_uid
        self._on_trouble = on_trouble
        self._trouble = ""
        self._slow = SlowDocument("observers-token", self._read, fresh_seconds)  # it may lie on a share that hangs

    async def admits(self, authorization: str) -> bool:
        """Whether the header has the token: `Bearer TOKEN`, or Basic with the token as any user's password."""
        token = await self._slow.get("") or b""
        return bool(token) and hmac.compare_digest(_parse_token(authorization), token)

    def _read(self, _query: str) -> bytes:
        """The token in the file; empty without a good one, which is reported."""
        token, trouble, hint = b"", "", ""
        try:
            token = read_token(self._files, self._path, self._owner_uid)
        except ConfigError as error:
            trouble, hint = error.reason, error.hint
        if trouble not in ("", self._trouble):
            self._on_trouble(trouble, hint)
        self._trouble = trouble
        return token


def read_token(files: Files, path: str, owner_uid: int = 0) -> bytes:
    """Read the token. Raises ConfigError where there is none, or others than its owner may read the file."""
    try:
        token = read_private(files, path, TOKEN_LIMIT_BYTES, owner_uid).content.strip()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist", _CREATION_HINT.format(path=path)) from None
    if not _TOKEN.fullmatch(token):
        reason = f"{path}: has no token, which is one line of 16 to 512 printable ASCII characters without blanks"
        raise ConfigError(reason, _CREATION_HINT.format(path=path))
    return token


def _parse_token(authorization: str) -> bytes:
    """The token in an Authorization header; empty where it has none."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogatepass")
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):
            return b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""
