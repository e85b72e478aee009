"""Serves a node's report and plan values to the other nodes, for requests signed with the cluster key."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

from sparkd.cluster.auth import NONCE_HEADER, SIGNATURE_HEADER, sign_answer, sign_request, signatures_match
from sparkd.lib.http_connection import Request, Response

NONCE_LIMIT = 64


class PeerApi:
    """`handle` and `publish` run in the loop's thread; `publish_plan` may be called from any."""

    def __init__(self, own_address: str, keys: Callable[[], tuple[bytes, ...]], hold_seconds: float) -> None:
        """`hold_seconds`: how long an answer is held back from a reader that has the current report."""
        self._own_address = own_address
        self._keys = keys
        self._hold_seconds = hold_seconds
        self._report = b""
        self._digest = ""
        self._published = asyncio.Event()
        """Set when the next report comes."""
        self._plan = b""

    def publish(self, report: bytes) -> None:
        """Serve this report from now on, and answer held requests."""
        if report != self._report:
            self._report = report
            self._digest = hashlib.sha256(report).hexdigest()
            self._published.set()
            self._published = asyncio.Event()

    def publish_plan(self, values: bytes) -> None:
        self._plan = values

    async def handle(self, request: Request) -> Response:
        nonce = request.headers.get(NONCE_HEADER.lower(), "")
        key = self._find_key(request, nonce) if 0 < len(nonce) <= NONCE_LIMIT else None
        if key is None:
            return Response(401)
        path, body = urlsplit(request.path), b""
        if path.path == "/report" and self._report:
            known = parse_qs(path.query).get("known", [""])[0]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._hold_seconds):
                    while known == self._digest:
                        await self._published.wait()
            body = self._report
        elif path.path == "/plan":
            body = self._plan
        status = 200 if body else 404
        signature = sign_answer(key, nonce, self._own_address, request.path, status, body)
        date = formatdate(time.time(), usegmt=True)
        return Response(status, body, headers=((SIGNATURE_HEADER, signature), ("Date", date)))

    def _find_key(self, request: Request, nonce: str) -> bytes | None:
        """The key of the request's signature, any of the file's keys; None where it is signed with none."""
        found = request.headers.get(SIGNATURE_HEADER.lower(), "")
        for key in self._keys():
            if signatures_match(sign_request(key, nonce, self._own_address, request.path), found):
                return key
        return None
