"""What a node serves to the others: its report and the values of its plan, for requests signed with the cluster key."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from sparkd.lib.http_connection import Request, Response
from sparkd.report import clock
from sparkd.signing import NONCE_HEADER, SIGNATURE_HEADER, matches, sign_answer, sign_request

NONCE_LIMIT = 64


class Exchange:
    """Answers in the loop's thread, where `publish` is called too; `values` may be set from any."""

    def __init__(self, own_address: str, keys: Callable[[], tuple[bytes, ...]], hold_seconds: float) -> None:
        """`hold_seconds`: how long an answer is held back from a reader that knows the report already."""
        self._own_address = own_address
        self._keys = keys
        self._hold_seconds = hold_seconds
        self._report = b""
        self._digest = ""
        self._published = asyncio.Event()
        """Of the next report."""
        self.values = b""

    def publish(self, report: bytes) -> None:
        """Serve this report from now on, and answer the requests that are held."""
        if report != self._report:
            self._report = report
            self._digest = hashlib.sha256(report).hexdigest()
            self._published.set()
            self._published = asyncio.Event()

    async def handle(self, request: Request) -> Response:
        nonce = request.headers.get(NONCE_HEADER.lower(), "")
        key = self._key_of(request, nonce)
        if key is None:
            return Response(401)
        path = urlsplit(request.path)
        body = b""
        if path.path == "/report" and self._report:
            await self._await_news(parse_qs(path.query).get("known", [""])[0])
            body = self._report
        elif path.path == "/plan":
            body = self.values
        return self._signed(key, nonce, request.path, 200 if body else 404, body)

    async def _await_news(self, known: str) -> None:
        """Wait for another report than the one with the digest `known`, for as long as an answer may be held back."""
        try:
            async with asyncio.timeout(self._hold_seconds):
                while known == self._digest:
                    await self._published.wait()
        except TimeoutError:
            return

    def _key_of(self, request: Request, nonce: str) -> bytes | None:
        """The key that the request is signed with: every one in the file is good, so that keys can change."""
        found = request.headers.get(SIGNATURE_HEADER.lower(), "")
        if not 0 < len(nonce) <= NONCE_LIMIT:
            return None
        for key in self._keys():
            if matches(sign_request(key, nonce, self._own_address, request.path), found):
                return key
        return None

    def _signed(self, key: bytes, nonce: str, path: str, status: int, body: bytes) -> Response:
        signature = sign_answer(key, nonce, self._own_address, path, status, body)
        return Response(
            status, body, headers=((SIGNATURE_HEADER, signature), (clock.DATE_HEADER, clock.stamp(time.time())))
        )
