"""The documents that a node serves to the others; an answer with its report is held back until that changes."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field

from sparkd.base.cluster import auth, head_key
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_connection import Request, Response
from sparkd.base.lib.slow_document import BUSY_STATUS, SlowDocument
from sparkd.base.state import shared_config


class PeerApi(Struct):
    """Serves documents to other nodes, for requests that are signed with the cluster key. Used by its loop's thread."""

    own_address: str
    keys: Callable[[], tuple[bytes, ...]]
    hold_seconds: float
    """How long an answer is held back from a reader that has the current report."""
    documents: Mapping[str, bytes] = {}
    """Bodies of the other documents, by path."""
    slow: dict[str, SlowDocument[bytes]] = field(default_factory=dict)
    """Documents that are made when they are requested, by path."""
    head_keys: Callable[[], tuple[bytes, ...]] = tuple
    """The head's private keys, which sign what its workers run; none on other nodes."""
    _report: bytes = b""
    _digest: str = ""
    _published: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next report comes."""

    def publish(self, report: bytes, *, wake: bool = True) -> None:
        """Serve this report from now on, and answer held requests; without `wake`, only when their hold ends."""
        if report != self._report:
            self._report = report
            self._digest = hashlib.sha256(report).hexdigest()
            if wake:
                self._published.set()
                self._published = asyncio.Event()

    def publish_document(self, path: str, body: bytes) -> None:
        self.documents = {**self.documents, path: body}

    async def handle(self, request: Request) -> Response:
        nonce = request.headers.get(auth.NONCE_HEADER.lower(), "")
        key = self._find_key(request, nonce) if 0 < len(nonce) <= 64 else None
        if key is None:
            return Response(401, headers=((auth.CHALLENGE_HEADER, request.challenge),))
        path = urlsplit(request.path)
        content = await self._read_document(path.path, path.query)
        status = BUSY_STATUS if content is None else 200 if content else 404
        body = content or b""
        signature = auth.sign_answer(key, nonce, self.own_address, request.path, status, body)
        date = formatdate(time.time(), usegmt=True)
        headers = {auth.SIGNATURE_HEADER: signature, "Date": date}
        if path.path == shared_config.PATH:
            with suppress(BlockingIOError):  # no thread now: the worker requests it again
                # Reads the keys, and the first time a library, from the disk, which may hang.
                signed = await run_in_thread("head-key", lambda: head_key.sign(self.head_keys(), signature))
                headers |= {head_key.HEADER: signed} if signed else {}
        return Response(status, body, headers=tuple(headers.items()))

    async def _read_document(self, path: str, query: str) -> bytes | None:
        """The document's content; empty where there is none, None while another reader's request is under way."""
        if path in self.slow:
            return await self.slow[path].get(query)
        if path != "/report":
            return self.documents.get(path, b"")
        known_digest = parse_qs(query).get("known", [""])[0]
        with suppress(TimeoutError):
            async with asyncio.timeout(self.hold_seconds):
                while self._report and known_digest == self._digest:
                    await self._published.wait()
        return self._report

    def _find_key(self, request: Request, nonce: str) -> bytes | None:
        """The key of the request's signature, any of the file's keys; None where it is signed with none."""
        received = request.headers.get(auth.SIGNATURE_HEADER.lower(), "")
        for key in self.keys():
            expected = auth.sign_request(key, request.challenge, nonce, self.own_address, request.path)
            if auth.signatures_match(expected, received):
                return key
        return None
