"""What a node serves to the others: its report and the values of its plan, to nobody who has not the cluster's key."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from sparkd.report import clock
from sparkd.report.http import Request, Response
from sparkd.signing import NONCE_HEADER, SIGNATURE_HEADER, matches, sign_answer, sign_request

NONCE_LIMIT = 64


class Exchange:
    """Answers requests in the server's thread; `report` and `values` are set from the main one."""

    def __init__(self, own_address: str, keys: Callable[[], tuple[bytes, ...]]) -> None:
        self._own_address = own_address
        self._keys = keys
        self.report = b""
        self.values = b""

    def handle(self, request: Request, expired: bool) -> Response | None:
        """None holds the answer back: whoever asks knows this report already."""
        nonce = request.headers.get(NONCE_HEADER.lower(), "")
        key = self._key_of(request, nonce)
        if key is None:
            return Response(401)
        path = urlsplit(request.path)
        if path.path == "/report" and self.report:
            body = self.report
            known = parse_qs(path.query).get("known", [""])[0]
            if not expired and known == hashlib.sha256(body).hexdigest():
                return None
        elif path.path == "/plan" and self.values:
            body = self.values
        else:
            return self._signed(key, nonce, request.path, 404, b"")
        return self._signed(key, nonce, request.path, 200, body)

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
