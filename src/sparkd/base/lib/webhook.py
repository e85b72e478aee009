"""One message to a URL that may itself be the secret: it appears in no error and no log.

TLS is verified, no redirect is followed, and of the answer only the status is read. A proxy and SSL_CERT_FILE of the
environment count.
"""

import asyncio
import logging
from collections.abc import Mapping
from ipaddress import ip_address

from sparkd.base.lib import without
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.event_loop import EventLoop
from sparkd.base.lib.http_client import http_error

with without("rich", "click"):
    import httpx

logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it logs each URL

OFFLINE = "is the network up? a proxy is taken from the environment alone"


class RefusedError(LaunchError):
    """The receiver does not take this message, now or later."""


def is_url(url: str) -> bool:
    """Whether it is a URL of http or https that can be requested."""
    try:
        parts = httpx.URL(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.host) and 0 <= (parts.port or 0) < 65536
    except (httpx.InvalidURL, ValueError):  # also a host that IDNA does not know
        return False
    return is_web and url.isascii() and " " not in url


def check_url(url: str) -> None:
    """Raise ValueError, without the URL, where it is unusable. http is for this machine and private networks alone."""
    if not is_url(url):
        raise ValueError("is no URL of https://")
    if url.lower().startswith("http:") and not _is_private(httpx.URL(url).host):
        raise ValueError("needs https: http is only taken for localhost and private addresses")


def _is_private(host: str) -> bool:
    try:
        return ip_address(host).is_private
    except ValueError:
        return host == "localhost"


def post(url: str, content: bytes, headers: Mapping[str, str], total_seconds: float = 10.0) -> None:
    """Post one message. Raises LaunchError where it may work later, RefusedError where this message is not taken."""
    try:
        # asyncio's own loop looks names up in a thread that Python waits for at its exit: it may hang there.
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            status = runner.run(asyncio.wait_for(_post(url, content, headers), total_seconds))
    except TimeoutError:
        raise LaunchError(f"no answer within {total_seconds:g} s", OFFLINE) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, ImportError, OSError) as error:
        # ValueError and ImportError: a proxy that httpx does not know, or only with a further library (SOCKS).
        raise LaunchError(str(http_error(error)).replace(url, "***"), OFFLINE) from None
    if 300 <= status < 400:
        raise LaunchError(f"HTTP {status}: redirects are not followed", "write the URL that it leads to")
    if status in (400, 413, 422):
        raise RefusedError(f"HTTP {status}", "is notify.template the receiver's?")
    if status >= 400:
        raise LaunchError(f"HTTP {status}", "does the receiver still know this URL?" if status < 500 else "")


async def _post(url: str, content: bytes, headers: Mapping[str, str]) -> int:
    all_headers = {"User-Agent": "sparkd", "Accept-Encoding": "identity", **headers}
    async with (
        httpx.AsyncClient(timeout=None) as client,  # noqa: S113 - the caller has one deadline for all
        client.stream("POST", url, content=content, headers=all_headers) as answer,
    ):
        return answer.status_code
