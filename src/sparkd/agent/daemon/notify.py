"""Sends messages to people, in a thread of its own: nothing waits for it, and its end ends no engine.

notify.json holds what was reported and what is still to be sent. The process that holds the lock beside it sends: the
agent, or `sparkd notify flush` where a unit stays down. What an agent could not write before its end, the next one
finds in its first report.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.actions.files import write
from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.agent.daemon.notify_delivery import deliver
from sparkd.agent.daemon.state_store import find_remedy
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.lib.log import Events
from sparkd.base.lib.webhook import RefusedError
from sparkd.base.state.file import FOLDER, StateFile
from sparkd.base.status import notice_queue, notices
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.notices import Notice, NotifyState
from sparkd.base.status.publisher import Published, Sink

FILE = StateFile(NotifyState, "notify.json")
LOCK = "notify.lock"
TICK_SECONDS = 10.0
"""Pause between two looks while a message may become due by time alone."""
MOST_REPORTS = 64
"""Most reports that are kept while the thread is sending."""


class Outbox(Struct):
    """The queue of messages in notify.json. Used by one thread."""

    host: Host
    settings: Notify
    events: Events
    retry_seconds: Sequence[float] = (5.0, 15.0, 60.0, 300.0, 600.0)
    """The pause after each failure of a way; the last one repeats. The first one is the file's."""
    state: NotifyState = NotifyState()
    _lock: int = -1
    _folder: Path = Path()
    _failures: dict[str, int] = {}
    """Failures in a row, by way."""
    _again_at: dict[str, float] = {}
    """When each way that failed is tried again."""
    _failed: dict[str, str] = {}
    """Why each way, or file, failed, as last logged."""

    def __post_init__(self) -> None:
        self._folder = Path(self.host.files.real(FOLDER))

    def open(self, *, wait: bool) -> bool:
        """Become the process that sends, until `close`. Without `wait`, returns False where another one is.

        A file that can't be read now must not lose its queue: with `wait` it is read again until it can be, and the
        lock is tried again. Raises OSError for either without `wait`.
        """
        while True:
            try:
                return self._try_to_open(wait=wait)
            except OSError as error:
                if not wait:
                    raise
                self._report_unread(str(error))
                time.sleep(self.retry_seconds[0])

    def _try_to_open(self, *, wait: bool) -> bool:
        refuse_shared(self._folder)
        self._lock = open_lock(self._folder / LOCK)
        try:
            if not try_lock(self._lock, wait=wait):
                self.close()
                return False
            self.state = FILE.load(self.host.files, self._report_unread) or NotifyState()
        except OSError:
            self.close()
            raise
        return True

    def close(self) -> None:
        os.close(self._lock)

    def record(self, state: NotifyState, observed: tuple[Notice, ...]) -> None:
        """Keep what is reported now, and queue the observed notices that the settings want."""
        notices_to_send = tuple(notice for notice in observed if notice.event in self.settings.events)
        state = replace(state, settings=self.settings.model_dump())
        state = notice_queue.enqueue(state, notices_to_send, self.settings.configured_ways, time.time())
        if state.dropped > self.state.dropped:
            self.events.warning("notify.messages.dropped", count=state.dropped - self.state.dropped)
        self._keep_state(state)

    def _keep_state(self, state: NotifyState) -> None:
        if state == self.state:
            return
        self.state = state
        try:
            write(self._folder / FILE.name, FILE.encode(state), FILE.mode, durable=True)
        except OSError as error:
            self._report_once(FILE.name, f"{FILE.path}: {error.strerror}", find_remedy(error))
        else:
            self._failed.pop(FILE.name, None)

    def send(self) -> None:
        """Send the queued messages in order, each way that is due."""
        for way in self.settings.configured_ways:
            while time.monotonic() >= self._again_at.get(way, 0.0):
                queued = next((message for message in self.state.queue if way in message.ways), None)
                if queued is None or not self._send_one(way, queued.notice):
                    break
                self._keep_state(notice_queue.sent(self.state, queued, way))

    def _send_one(self, way: str, notice: Notice) -> bool:
        """Send a message. Returns whether that is done with: it was sent, or the receiver rejects it."""
        try:
            deliver(self.host.files, self.settings, way, self._with_dropped(notice))
        except LaunchError as error:
            self._report_once(way, error.reason, error.hint)
            if isinstance(error, RefusedError):
                return True
            failures = self._failures[way] = self._failures.get(way, 0) + 1
            pause_seconds = self.retry_seconds[min(failures, len(self.retry_seconds)) - 1]
            self._again_at[way] = time.monotonic() + pause_seconds
            return False
        self._failures.pop(way, None)
        self._failed.pop(way, None)
        self.events.info("notify.message.sent", by=way, about=notice.event)
        self._keep_state(replace(self.state, dropped=0))
        return True

    def _with_dropped(self, notice: Notice) -> Notice:
        if not self.state.dropped:
            return notice
        return replace(notice, text=f"{notice.text} (dropped before it: {self.state.dropped})")

    def _report_unread(self, reason: str) -> None:
        if self._failed.get(FOLDER) != reason:
            self._failed[FOLDER] = reason
            self.events.warning("state.read.failed", reason=reason)

    def _report_once(self, what: str, reason: str, hint: str) -> None:
        if self._failed.get(what) != reason:
            self._failed[what] = reason
            self.events.warning("notify.message.failed", by=what, reason=reason, hint=hint)


class Notifications(Struct):
    """Takes reports from the main thread by `take`, which keeps only changed ones, and sends in another by `run`."""

    _outbox: Outbox
    _degraded_seconds: float
    _reports: deque[NodeReport] = field(default_factory=lambda: deque(maxlen=MOST_REPORTS))
    _changed: threading.Event = field(default_factory=threading.Event)
    _last_summary: object = None

    def take(self, published: Published) -> None:
        report = published.report
        message = "" if report.phase in (Phase.LAUNCHING, Phase.LOADING) else report.message
        peers = tuple((peer.contact, peer.report and peer.report.phase) for peer in report.peers)
        summary = report.phase, report.cause, message, peers
        if summary != self._last_summary:
            self._last_summary = summary
            self._reports.append(report)
            self._changed.set()

    def run(self) -> None:
        self._outbox.open(wait=True)
        last_reports: list[NodeReport] = []
        while True:
            self._changed.wait(TICK_SECONDS if self._outbox.state.pending else None)
            self._changed.clear()
            taken = [self._reports.popleft() for _ in range(len(self._reports))]
            for report in taken or last_reports:
                self._outbox.record(*notices.observe(self._outbox.state, report, time.time(), self._degraded_seconds))
            last_reports = taken[-1:] or last_reports
            self._outbox.send()


def start_notifications(host: Host, settings: Notify, events: Events) -> Sink:
    """Start the thread. Returns the sink that takes each report from now on. A failure is only logged."""
    notifications = Notifications(Outbox(host, settings, events), settings.degraded_minutes * 60)

    def run() -> None:
        try:
            notifications.run()
        except OSError as error:
            events.error("agent.thread.failed", thread="notify", reason=str(error))

    try:
        start_thread(threading.Thread(target=run, name="notify", daemon=True))
    except BlockingIOError as error:
        events.error("agent.thread.failed", thread="notify", reason=str(error))
    return notifications.take
