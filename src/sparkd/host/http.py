"""HTTP as sparkd speaks it: to the docker socket (GET only) and to the engine on this node. The only home of httpx.

Answers come from outside: sizes are bounded, and what is not HTTP or not in time is `Unanswered`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

BODY_LIMIT_BYTES = 8 << 20
"""/metrics of vLLM 0.32 is 54 KB; a docker container list stays far below this."""


class Unanswered(Exception):  # noqa: N818 - a state of affairs, not yet an error
    """Nobody answered: refused, reset, timed out, or not HTTP. `str()` says which."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


class HttpClient:
    """Keep-alive client of one server, for one thread at a time."""

    def __init__(
        self, base_url: str, *, socket_path: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        # trust_env off: a proxy from the environment must never see a node's own traffic.
        self._client = httpx.Client(
            base_url=base_url,
            # Plain HTTP alone. httpx would read its file of certificates for every client, also while an upgrade of
            # the package replaces it: seen, and the agent died of it.
            transport=httpx.HTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), uds=socket_path),
            headers=dict(headers or {}),
            trust_env=False,
        )

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Answer:
        """Raises Unanswered."""
        return self._ask("GET", path, timeout_seconds, params=params)

    def post_json(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> Answer:
        """Raises Unanswered."""
        return self._ask("POST", path, timeout_seconds, json=body)

    def _ask(
        self,
        method: str,
        path: str,
        timeout_seconds: float,
        *,
        params: Mapping[str, str] | None = None,
        json: Mapping[str, object] | None = None,
    ) -> Answer:
        try:
            with self._client.stream(method, path, params=params, json=json, timeout=timeout_seconds) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > BODY_LIMIT_BYTES:
                        raise Unanswered(f"answer of over {BODY_LIMIT_BYTES} bytes")
                return Answer(response.status_code, bytes(body))
        except httpx.TimeoutException:
            raise Unanswered(f"no answer within {timeout_seconds:g} s") from None
        except httpx.HTTPError as error:
            raise Unanswered(str(error) or type(error).__name__) from None

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Raw chunks of an endless GET, until the server ends it. Raises Unanswered, also between chunks."""
        try:
            timeout = httpx.Timeout(10.0, read=None)
            with self._client.stream("GET", path, params=params, timeout=timeout) as response:
                if response.status_code != 200:
                    raise Unanswered(f"HTTP {response.status_code}")
                yield response.iter_raw()
        except httpx.HTTPError as error:
            raise Unanswered(str(error) or type(error).__name__) from None

    def close(self) -> None:
        self._client.close()
