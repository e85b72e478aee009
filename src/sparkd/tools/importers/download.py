"""Downloads one text whose URL a person has named: only by https, within limits, without credentials.

No cookie, no password of a URL or of ~/.netrc is sent; a proxy and SSL_CERT_FILE of the environment count.
"""

import asyncio
import re
from shlex import quote
from urllib.parse import urlsplit

from sparkd.base.lib import without
from sparkd.base.lib.errors import ConfigError
from sparkd.base.lib.text import sanitize

with without("rich", "click"):
    import httpx

LIMIT_BYTES = 1 << 20
WAIT_SECONDS = 10.0
"""Limit for each step: the connection, the answer, the next bytes."""
MOST_REDIRECTS = 5


def download_text(url: str, total_seconds: float = 30.0) -> str:
    """Download UTF-8 text of at most LIMIT_BYTES. Raises ConfigError."""
    shown = sanitize(url)
    try:
        return asyncio.run(asyncio.wait_for(_request(url, shown), total_seconds))
    except TimeoutError:
        raise ConfigError(f"{shown}: took longer than {total_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", sanitize(str(error))) or type(error).__name__
        by_proxy = f"sudo env HTTPS_PROXY=URL sparkd recipe import {quote(shown)}"  # sudo keeps no proxy
        offline = f"is the network up? Save the file, and import that; or by a proxy: {by_proxy}"
        raise ConfigError(f"{shown}: {reason}", offline if isinstance(error, httpx.TransportError) else "") from None


async def _request(url: str, shown: str) -> str:
    async with httpx.AsyncClient(timeout=WAIT_SECONDS, headers={"Accept-Encoding": "identity"}) as client:
        for _ in range(MOST_REDIRECTS + 1):
            _refuse_url(url)
            async with client.stream("GET", url) as answer:
                if not answer.has_redirect_location:
                    return await _read_body(answer, shown)
                url = str(answer.url.join(answer.headers["Location"]))
                client.cookies.clear()
    raise ConfigError(f"{shown}: is redirected more than {MOST_REDIRECTS} times")


def _refuse_url(url: str) -> None:
    """Raise ConfigError for a URL that is not used."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"{sanitize(url)}: only https is used")
    if parts.hostname == "github.com" and "/blob/" in parts.path:
        raw = f"https://raw.githubusercontent.com{parts.path.replace('/blob/', '/', 1)}"
        raise ConfigError(f"{sanitize(url)}: is a page about the file", f"sparkd recipe import {quote(raw)}")
    if parts.username or parts.password:
        raise ConfigError("a URL with a name or a password is not used")


async def _read_body(answer: httpx.Response, shown: str) -> str:
    if answer.status_code != httpx.codes.OK:
        raise ConfigError(f"{shown}: HTTP {answer.status_code}")
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > LIMIT_BYTES:
            raise ConfigError(f"{shown}: is larger than {LIMIT_BYTES} bytes")
    return body.decode()
