"""Reads one other node's report, over and over, as a task of the network's loop.

Each request names the report that is known already, and the other side holds its answer back until it has another: so
news arrive when they happen, and a quiet cluster exchanges next to nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lib.http_client import ConnectRefused, HttpClient, HttpError, Response
from sparkd.lib.text import sanitize
from sparkd.peers.believed import believed
from sparkd.peers.snapshot import Snapshot
from sparkd.report import clock
from sparkd.report.node_report import Contact, utc_now
from sparkd.signing import NONCE_HEADER, SIGNATURE_HEADER, matches, new_nonce, sign_answer, sign_request

CONNECT_SECONDS = 2.0
"""A second SYN goes out after one second: on a link that loses every fifth packet, four of a hundred need a third."""
ANSWER_SECONDS = 3.0
"""Over the time that an answer is held back: four retransmissions of TCP. Then a new connection is quicker."""
PAUSE_SECONDS = 0.5
"""After tries that failed."""
PACE_SECONDS = 0.05
"""Between answers: whatever a peer does, it costs no more than this allows."""


class UnsignedError(Exception):
    """An answer that proves nothing: not signed with our key, or ours was refused."""


class Source(Struct, frozen=True):
    """Where a report is read, and from where. `hold_seconds`: how long the other side may hold an answer back."""

    rank: int
    address: str
    port: int
    own_address: str
    hold_seconds: float
    answer_seconds: float = ANSWER_SECONDS

    @property
    def patience_seconds(self) -> float:
        """For one answer."""
        return self.hold_seconds + self.answer_seconds


class Reader:
    """`snapshot` may be read from any thread; `bell` is rung at each change of it, and at each failure."""

    def __init__(self, source: Source, keys: Callable[[], tuple[bytes, ...]], bell: Callable[[], None]) -> None:
        self.snapshot = Snapshot(source.rank, source.address, utc_now())
        self._source = source
        self._keys = keys
        self._bell = bell
        self._known = ""
        self._client = self._new_client()

    def _new_client(self) -> HttpClient:
        host = f"[{self._source.address}]" if ":" in self._source.address else self._source.address
        return HttpClient(f"http://{host}:{self._source.port}", local_address=self._source.own_address)

    async def run(self) -> None:
        """Read until cancelled."""
        failed = False
        try:
            while True:
                failed_before, failed = failed, not await self._turn()
                if failed:
                    # Whatever state the connection was in, the next try has a fresh one: TCP's own waits grow too long.
                    await self._client.close()
                # The first failure may be an agent that has just died: whether it refuses is to be known at once.
                await asyncio.sleep(PAUSE_SECONDS if failed and failed_before else PACE_SECONDS)
        finally:
            await self._client.close()

    async def _turn(self) -> bool:
        """Ask once; whether a good answer came."""
        try:
            answer = await self._ask(self._client, f"/report?known={self._known}")
            if answer.status == 404:
                raise HttpError("it has nothing to tell yet")
            report = believed(answer.body, self._source.rank) if answer.status == 200 else None
            if report is None:
                raise UnsignedError("its answer is no report of this rank: another cluster.nodes or another sparkd?")
        except ConnectRefused as error:
            self._failed(Contact.REFUSED, str(error))
            return False
        except UnsignedError as error:
            self._failed(Contact.UNSIGNED, str(error))
            return False
        except HttpError as error:
            self._failed(self._quiet(), str(error))
            return False
        self._known = hashlib.sha256(answer.body).hexdigest()
        before = self.snapshot
        date = answer.headers.get(clock.DATE_HEADER.lower(), "")
        self.snapshot = replace(
            before,
            contact=Contact.ANSWERS,
            since=before.since if before.contact is Contact.ANSWERS else utc_now(),
            heard_at=time.monotonic(),
            report=report,
            said="",
            clock_ahead_seconds=clock.ahead(date, time.time(), before.clock_ahead_seconds),
        )
        if self.snapshot.report != before.report or before.contact is not Contact.ANSWERS:
            self._bell()
        return True

    def _quiet(self) -> Contact:
        """One lost answer is no silence yet."""
        heard_at, contact = self.snapshot.heard_at, self.snapshot.contact
        recent = heard_at is not None and time.monotonic() - heard_at < self._source.patience_seconds
        return contact if recent and contact is Contact.ANSWERS else Contact.SILENT

    def _failed(self, contact: Contact, said: str) -> None:
        before = self.snapshot
        since = before.since if before.contact is contact else utc_now()
        self.snapshot = replace(before, contact=contact, since=since, said=sanitize(said))
        self._known = ""  # whoever answers next may be another life, and is asked for the whole of it
        self._bell()

    async def values(self) -> bytes:
        """The plan values of the other node, as it sent them. Raises HttpError or UnsignedError."""
        client = self._new_client()
        try:
            answer = await self._ask(client, "/plan")
        finally:
            await client.close()
        if answer.status != 200:
            raise HttpError(f"HTTP {answer.status}")
        return answer.body

    async def _ask(self, client: HttpClient, path: str) -> Response:
        """An answer that is proved to be of this peer and for this request. Raises HttpError or UnsignedError."""
        address = self._source.address
        for key in self._keys():  # while keys change, the other side may know the older one alone
            nonce = new_nonce()
            answer = await client.get(
                path,
                self._source.patience_seconds,
                headers={NONCE_HEADER: nonce, SIGNATURE_HEADER: sign_request(key, nonce, address, path)},
                connect_seconds=CONNECT_SECONDS,
            )
            if answer.status == 401:
                continue
            signature = sign_answer(key, nonce, address, path, answer.status, answer.body)
            if not matches(signature, answer.headers.get(SIGNATURE_HEADER.lower(), "")):
                raise UnsignedError(
                    "its answer is not signed with this node's key; cluster.key_file must be the same on all nodes"
                )
            return answer
        raise UnsignedError("it refuses this node: cluster.key_file and cluster.nodes must be the same on all")
