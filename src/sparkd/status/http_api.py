"""The read-only HTTP API for people and monitors on `observe.listen`, without a key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_address

from sparkd.lib.http_connection import Handler, Request, Response
from sparkd.status.model import NodeReport, Phase, dump

BEAT_LIMIT_SECONDS = 30.0
"""A main loop that has not turned for so long hangs: it turns every ten seconds at least."""
IN_SERVICE = (Phase.SERVING, Phase.DEGRADED)
PATHS = ("/livez", "/readyz", "/metrics", "/report")
TEXT = "text/plain; charset=utf-8"


def make_handler(report: Callable[[], NodeReport], beat_age: Callable[[], float]) -> Handler:
    """Answers at once, in the loop's thread.

    `report` is without secrets. `beat_age`: seconds since the agent's main loop last turned.
    """

    async def handle(request: Request) -> Response:
        known, age = report(), beat_age()
        path = request.path.partition("?")[0]
        if not _is_own_name(request.headers.get("host", ""), known.node):
            # The name of a foreign page may point at this machine, and a browser would read from here for it.
            return _answer(403, f"use the IP address, localhost or {known.node}\n")
        if path in ("/livez", "/readyz") and age > BEAT_LIMIT_SECONDS:  # the phase is as old as the beat
            return _answer(503, f"the agent's main loop has not turned for {age:.0f} s\n")
        match path:
            case "/livez":
                return _answer(200, "ok\n")
            case "/readyz":
                return _answer(200 if known.phase in IN_SERVICE else 503, f"{known.phase.value}\n")
            case "/metrics":
                # Imported at the first page: 16 ms of CPU that a node without Prometheus does not need.
                from sparkd.status import metrics

                page = metrics.render(known, datetime.now(UTC), _started_at(known))
                return _answer(200, page, metrics.CONTENT_TYPE)
            case "/report":
                return _answer(200, dump(known), "application/json")
        return _answer(404, f"here are {', '.join(PATHS)}\n")

    return handle


def _answer(status: int, body: str, content_type: str = TEXT) -> Response:
    # A name may hold half of a character, which is no UTF-8.
    data = body.encode("utf-8", "backslashreplace")
    return Response(status, data, content_type, (("X-Content-Type-Options", "nosniff"),))


def _is_own_name(host: str, node: str) -> bool:
    """Whether a Host header surely means this machine."""
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
