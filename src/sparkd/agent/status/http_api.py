"""The read-only HTTP API for people and monitors on `observe.listen`, and its server; `/metrics` is for Prometheus."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from math import ceil
from typing import Any

from msgspec.structs import replace

from sparkd.agent.status.metrics import render_metrics
from sparkd.agent.status.page import Element, Page
from sparkd.agent.status.page_content import build_page
from sparkd.agent.status.page_history import PageHistory
from sparkd.agent.status.token_file import TokenFile
from sparkd.base.config.settings import Observe
from sparkd.base.host.files import Files
from sparkd.base.host.sock_diag import TCP_LISTEN, find_tcp
from sparkd.base.lib.http_connection import Handler, Request, Response
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.log import Events
from sparkd.base.lib.text import sanitize
from sparkd.base.status.bounds import TEXT_LIMIT
from sparkd.base.status.figure_texts import load_seconds_left
from sparkd.base.status.model import IN_SERVICE, NodeReport, Phase
from sparkd.base.status.publisher import Published
from sparkd.base.status.view import View

STANDSTILL_SECONDS = 30.0
"""A main loop that has not turned for so long hangs: it turns at least every ten seconds."""
LISTEN_AGAIN_SECONDS = 10.0
"""Pause before the next try, where the address is not there yet, or another program has the port."""
DEFAULT_RETRY_SECONDS = 10
"""Retry-After, where nothing better is known."""
RETRY_SECONDS_BY_PHASE = {
    Phase.LAUNCHING: 60,
    Phase.LOADING: 60,
    Phase.COOLING: 60,
    Phase.BLOCKED: 30,
    Phase.STOPPED: 60,
}
"""The same for phases from which a start takes longer. A load of 149 GB takes minutes; a blocked node is examined every
5 s, and then has to load."""
PROBES = ("/livez", "/readyz")
"""Paths for load balancers. They need no token; without it no message of the report is shown."""
PATHS = ("/", *PROBES, "/metrics", "/report")
TEXT = "text/plain; charset=utf-8"
CHALLENGE = ("WWW-Authenticate", 'Basic realm="sparkd", charset="UTF-8"')
"""The header by which a browser asks for the password by itself, also without JavaScript."""  # words: keep


def make_handler(
    published: Callable[[], Published],
    keepalive_age: Callable[[], float],
    admits: Callable[[str], Awaitable[bool]] | None = None,
    history: PageHistory | None = None,
) -> Handler:
    """Make the handler of requests, which runs in the event loop's thread.

    `keepalive_age`: seconds since the agent's main loop last turned. `admits`: whether an Authorization header has the
    token; None where none is needed. `history`: what the page shows besides the report.
    """
    page_history = history or PageHistory()

    def build() -> tuple[str, list[Element]]:
        view = View(datetime.now(UTC), alive=keepalive_age() <= STANDSTILL_SECONDS)
        return build_page(published().report, view, page_history)

    page = Page(build, page_history.refresh)

    async def handle(request: Request) -> Response:
        (path, _, query), (report, text) = request.path.partition("?"), published()
        if admits is None:
            if not _is_own_name(request.headers.get("host", ""), report.node):
                # The host name of a foreign page may resolve to this machine: then its script could read from here.
                return _make_response(403, f"use the IP address, localhost or {report.node}\n")
        elif not await admits(request.headers.get("authorization", "")):
            if path not in PROBES:
                return _make_response(401, "the token of observe.token_file is needed\n")._replace(headers=(CHALLENGE,))
            response = _answer_path(path, replace(report, message=""), "", keepalive_age())
            # A stranger may not keep its connection open.
            return response._replace(headers=(*response.headers, ("Connection", "close")))
        if path in ("/", "/page"):  # its script requests updates by /page?known=DIGEST
            return await page.answer(path, query.removeprefix("known="))
        return _answer_path(path, report, text, keepalive_age())

    return handle


def _answer_path(path: str, report: NodeReport, text: str, age_seconds: float) -> Response:
    """The answer at every path but the page's. `text`: the report as JSON. `age_seconds`: since the last turn."""
    if path in PROBES and age_seconds > STANDSTILL_SECONDS:  # the phase in the report is as old
        reason = f"the agent's main loop has not turned for {age_seconds:.0f} s\n"
        return _make_response(503, reason, retry_seconds=DEFAULT_RETRY_SECONDS)
    match path:
        case "/livez":
            return _make_response(200, "ok\n")
        case "/readyz":
            return _answer_readiness(report)
        case "/metrics":
            return _make_response(200, *render_metrics(report, datetime.now(UTC)))
        case "/report":
            return _make_response(200, text, "application/json")
    return _make_response(404, f"here are {', '.join(PATHS)}\n")


def _answer_readiness(report: NodeReport) -> Response:
    """The answer to load balancers. A 503 says what is awaited, and in Retry-After when to try again."""
    if report.phase in IN_SERVICE:
        return _make_response(200, f"{report.phase.value}\n")
    awaited = f": {sanitize(report.message, TEXT_LIMIT)}" if report.message else ""
    seconds = retry_seconds(report, datetime.now(UTC))
    return _make_response(503, f"{report.phase.value}{awaited}\n", retry_seconds=seconds)


def retry_seconds(report: NodeReport, now: datetime) -> int:
    """Time until this node may serve: by earlier loads, else by the step's own estimate, else by the phase."""
    load_seconds, step_seconds = load_seconds_left(report.engine, now), report.engine.seconds_left
    left_seconds = load_seconds if load_seconds is not None and load_seconds > 0 else step_seconds
    if report.phase is Phase.LOADING and left_seconds is not None:
        return ceil(min(max(left_seconds, 1), 3600))
    return RETRY_SECONDS_BY_PHASE.get(report.phase, DEFAULT_RETRY_SECONDS)


def _make_response(status: int, body: str, content_type: str = TEXT, *, retry_seconds: int | None = None) -> Response:
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


def start_status_server(
    observe: Observe,
    files: Files,
    published: Callable[[], Published],
    keepalive_age: Callable[[], float],
    spawn: Callable[[Coroutine[Any, Any, None]], object],
    events: Events,
    history: PageHistory,
) -> None:
    """Start the server, unless the settings turn it off. `keepalive_age`: as for `make_handler`.

    `spawn` runs a coroutine that never ends by itself. A failure is only logged, and the address tried again, since no
    engine depends on it.
    """
    if observe.address is None:
        return
    host, port = observe.address

    def on_error(trouble: str) -> None:
        events.warning("status.server.failed", reason=trouble)

    def on_bad_token(trouble: str, hint: str) -> None:
        events.warning("status.token.unusable", reason=trouble, hint=hint)

    token = TokenFile(files, observe.token_file, on_bad_token) if observe.token_file else None
    handle = make_handler(published, keepalive_age, token.admits if token else None, history)

    async def serve() -> None:
        reported = ""
        if token is not None:
            await token.admits("")  # what is wrong with its file is reported before the first request
        while True:
            try:
                server = HttpServer(host, port, handle, on_error=on_error, find_user=_find_user)
            except OSError as error:
                trouble = f"{host} port {port} can't be had: {error.strerror}"
                if trouble != reported:
                    on_error(trouble)
                reported = trouble
                await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            else:
                await server.serve()

    spawn(serve())
    spawn(history.follow(published))


def _find_user(connection: socket.socket) -> str:
    """The local user who made a connection, since all have the same address; `gone`: its user has closed it."""
    with suppress(OSError):
        peer = find_tcp(connection.family, connection.getpeername(), connection.getsockname())
        if peer is not None and peer.state != TCP_LISTEN:  # as of a client elsewhere, on whose port this node listens
            return f"uid {peer.uid}" if peer.inode else "gone"
    return ""
