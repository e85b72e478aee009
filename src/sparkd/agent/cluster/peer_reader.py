"""Polls the reports of the other nodes, as tasks of the event loop.

Long polling: each request names the last known report, and the server holds its answer back until it has a newer one.

A signature proves the sender of a report, not its content. Its texts go into this node's report, journal and reasons,
and from there to other nodes again: without a bound, two nodes that quote each other would grow without end.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial

from msgspec.structs import replace

from sparkd.agent.cluster.client import SignedClient, Source, UnsignedError, fetch
from sparkd.base.lib.event_loop import run_in_thread
from sparkd.base.lib.http_client import ConnectRefused, HttpError, LocalAddressGone, ReceivedResponse
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import utc_now
from sparkd.base.status.bounds import bounded
from sparkd.base.status.model import PEER_LIMIT_BYTES, Contact, NodeReport, PeerStatus, fit, parse, without_figures

PAUSE_SECONDS = 0.5
"""Pause after repeated failures."""
PACE_SECONDS = 0.05
"""Pause between requests: bounds the cost of any peer."""
REPORT_BYTES = 4 * PEER_LIMIT_BYTES
"""Limit of a report before it is parsed: what can be written in a few bytes can be large then."""
SMALL_BYTES = 64 << 10
"""A body that is parsed within 3 ms. A usual report has some 5 KB."""
UNCHANGED_SECONDS = 2.0
"""Less than this is the answer's travel time."""


class PeerReader:
    """Reads the reports of one peer, again and again. `status` may be read from any thread.

    `wake` is called at each change and at each failure.
    """

    def __init__(self, source: Source, keys: Callable[[], tuple[bytes, ...]], wake: Callable[[], None]) -> None:
        self.status = PeerStatus(source.address, source.rank, Contact.UNHEARD, utc_now())
        self.heard_at: float | None = None
        """Monotonic time of the last valid answer. Set before `status`; read after it."""
        self._source = source
        self._wake = wake
        self._known_digest = ""
        self._keys = keys
        self._client = SignedClient(source, keys)

    async def run(self) -> None:
        failed = False
        try:
            while True:
                # A connection that failed is closed by its client: TCP's own retransmission waits grow too long.
                failed_before, failed = failed, not await self._read_once()
                # After the first failure retry at once: a dead agent refuses connections.
                await asyncio.sleep(PAUSE_SECONDS if failed and failed_before else PACE_SECONDS)
        finally:
            await self._client.close()

    async def _read_once(self) -> bool:
        """Request the report once. Returns whether a valid answer came."""
        try:
            answer, report = await self._request_report()
        except ConnectRefused as error:
            return self._record_failure(Contact.REFUSED, str(error))
        except UnsignedError as error:
            return self._record_failure(Contact.UNSIGNED, str(error))
        except LocalAddressGone:
            reason = f"this node's own address {self._source.own_address} is gone"
            return self._record_failure(self._judge_silence(), reason, own_address_gone=True)
        except HttpError as error:
            return self._record_failure(self._judge_silence(), str(error))
        previous, date = self.status, answer.headers.get("date", "")
        has_answered = previous.contact is Contact.ANSWERS
        self.heard_at = time.monotonic()
        self.status = replace(
            previous,
            contact=Contact.ANSWERS,
            since=previous.since if has_answered else utc_now(),
            report=report,
            said="",
            own_address_gone=False,
            clock_ahead_seconds=clock_ahead(date, time.time(), previous.clock_ahead_seconds),
        )
        if not has_answered or (previous.report and without_figures(report) != without_figures(previous.report)):
            self._wake()
        return True

    async def _request_report(self) -> tuple[ReceivedResponse, NodeReport]:
        """Request the report. Raises HttpError, UnsignedError."""
        answer = await self._client.request(f"/report?known={self._known_digest}", REPORT_BYTES)
        if answer.status == 404:
            raise HttpError("it has no report yet")
        digest = hashlib.sha256(answer.body).hexdigest()
        report = None
        if answer.status == 200 and digest == self._known_digest:  # held back to the end, and nothing is new
            report = self.status.report
        elif answer.status == 200:
            report = await self._parse_report(answer.body)
        if report is None:
            raise UnsignedError("its answer is no report of this rank: another cluster.nodes or another sparkd?")
        self._known_digest = digest
        return answer, report

    async def _parse_report(self, body: bytes) -> NodeReport | None:
        """Parse a report, in a thread where it is large. Raises HttpError where no thread can be started."""
        parse_body = partial(parse_peer_report, body, self._source.rank)
        if len(body) <= SMALL_BYTES:
            return parse_body()
        try:
            return await run_in_thread("report", parse_body)
        except BlockingIOError as error:
            raise HttpError(f"no thread to parse its report: {error}") from None

    def _judge_silence(self) -> Contact:
        """The contact after a lost answer: the first one is no silence yet."""
        recent = self.heard_at is not None and time.monotonic() - self.heard_at < self._source.patience_seconds
        return Contact.ANSWERS if recent and self.status.contact is Contact.ANSWERS else Contact.SILENT

    def _record_failure(self, contact: Contact, reason: str, *, own_address_gone: bool = False) -> bool:
        previous = self.status
        since = previous.since if previous.contact is contact else utc_now()
        said = sanitize(reason)
        self.status = replace(previous, contact=contact, since=since, said=said, own_address_gone=own_address_gone)
        self._known_digest = ""  # the next answer may be another incarnation's, so request a whole report
        self._wake()
        return False

    async def fetch(self, path: str) -> ReceivedResponse:
        """A document of the peer with its headers. Raises HttpError or UnsignedError."""
        return await fetch(self._source, self._keys, path)


def clock_ahead(date: str, now: float, known: float | None) -> float | None:
    """Whole seconds that the other clock is ahead; `known` where that has hardly changed, or there is no date.

    The Date of an answer is not signed: forging it could make a warning appear, and nothing else.
    """
    try:
        # HTTP dates are cut to whole seconds: half a second is lost on average.
        sent = parsedate_to_datetime(date).timestamp() + 0.5
    except (ValueError, TypeError, OverflowError):
        return known
    ahead_seconds = float(round(sent - now))
    return known if known is not None and abs(ahead_seconds - known) < UNCHANGED_SECONDS else ahead_seconds


def parse_peer_report(body: bytes, rank: int) -> NodeReport | None:
    """The peer's report, bounded and sanitized, without its peers; None where it is invalid, or another rank's."""
    report = parse(body.decode("utf-8", "replace"))
    if report is None or report.rank != rank:
        return None
    try:
        return fit(bounded(replace(report, peers=())), PEER_LIMIT_BYTES)[0]
    except ValueError:
        return None
