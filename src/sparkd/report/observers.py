"""What people and monitors read of this node on `observe.listen`: no key is asked for, and nothing can be changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address

from sparkd.lib.http_connection import Handler, Request, Response
from sparkd.report.node_report import NodeReport, Phase, dump

BEAT_LIMIT_SECONDS = 30.0
"""A main loop that has not turned for so long hangs: it turns every ten seconds at least."""
IN_SERVICE = (Phase.SERVING, Phase.DEGRADED)
PATHS = ("/livez", "/readyz", "/metrics", "/report")
HEADERS = (("X-Content-Type-Options", "nosniff"),)
TEXT = "text/plain; charset=utf-8"


def handler(report: Callable[[], NodeReport], beat_age: Callable[[], float]) -> Handler:
    """Answers at once, in the loop's thread.

    `report` is without secrets. `beat_age`: seconds since the agent's main loop last turned.
    """

    async def handle(request: Request) -> Response:
        known = report()
        if not _is_own_name(request.headers.get("host", ""), known.node):
            # A page of a stranger's may have its own name point at this machine, and have a browser read from here.
            return _text(403, f"ask by IP address, as localhost or as {known.node}")
        match request.path.partition("?")[0]:
            case "/livez":
                return _live(beat_age())
            case "/readyz":
                return _ready(known, beat_age())
            case "/metrics":
                # Imported at the first page: 16 ms of CPU that a node without Prometheus does not need.
                from sparkd.report import metrics

                page = metrics.render(known, datetime.now(UTC), _started_at(known))
                return _answer(200, page, metrics.CONTENT_TYPE)
            case "/report":
                return _answer(200, dump(known), "application/json")
        return _text(404, f"here are {', '.join(PATHS)}")

    return handle


def _live(age: float) -> Response:
    return _text(503, _hangs(age)) if age > BEAT_LIMIT_SECONDS else _text(200, "ok")


def _ready(report: NodeReport, age: float) -> Response:
    if age > BEAT_LIMIT_SECONDS:
        return _text(503, _hangs(age))  # its phase is as old as its beat
    return _text(200 if report.phase in IN_SERVICE else 503, report.phase.value)


def _hangs(age: float) -> str:
    return f"the agent's main loop has not turned for {age:.0f} s"


def _is_own_name(host: str, node: str) -> bool:
    """Whether a Host header names this machine as nobody else can be named."""
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


def _started_at(report: NodeReport) -> float | None:
    """Of the agent, since 1970; None where the report does not say."""
    if not report.start_time:
        return None
    since_boot = report.start_time / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 1)


def _text(status: int, line: str) -> Response:
    return _answer(status, f"{line}\n", TEXT)


def _answer(status: int, body: str, content_type: str) -> Response:
    # A name may hold half of a character, which is no UTF-8.
    return Response(status, body.encode("utf-8", "backslashreplace"), content_type, HEADERS)
