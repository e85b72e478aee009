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
from shlex import quote

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.actions.files import write
from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.agent.daemon.operator_program import DEADLINE_SECONDS, ENVIRONMENT, first_line, run_program
from sparkd.agent.daemon.state_store import find_remedy
from sparkd.agent.preflight.hooks import check_program
from sparkd.agent.status.notice_formats import as_json, render
from sparkd.base.config import Notify
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import ConfigError, LaunchError
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.lib.log import Events
from sparkd.base.lib.webhook import RefusedError, check_url, post
from sparkd.base.state.file import FOLDER, StateFile
from sparkd.base.status import notices
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.notices import Notice, NotifyState
from sparkd.base.status.publisher import Published, Sink

FILE = StateFile("notify.json", NotifyState)
LOCK = "notify.lock"
TICK_SECONDS = 10.0
"""Pause between two looks while a message may become due by time alone."""
MOST_REPORTS = 64
"""Most reports that are kept while the thread is sending."""


def deliver(
    files: Files, settings: Notify, way: str, notice: Notice, program_seconds: float = DEADLINE_SECONDS
) -> None:
    """Send a message. Raises LaunchError where it may work later, RefusedError where the receiver rejects it."""
    if way == "command":
        _run_program(files, settings.command, notice, program_seconds)
    else:
        post(read_url(files, settings.webhook_file), *render(settings.template, notice))


def read_url(files: Files, path: str) -> str:
    """Read the webhook's URL from its file. Raises LaunchError, whose text never holds the URL."""
    try:
        file = read_private(files, path, 4096)
    except FileNotFoundError:
        raise LaunchError(f"{path} does not exist", "write the URL there, alone") from None
    except ConfigError as error:
        raise LaunchError(error.reason, error.hint) from None
    url = file.content.decode("utf-8", "replace").strip()
    try:
        check_url(url)
    except ValueError as error:
        raise LaunchError(f"what is in {path} {error}", "write the URL there, alone") from None
    return url


def _run_program(files: Files, path: str, notice: Notice, seconds: float) -> None:
    if (program := check_program(files, path)).problem:
        raise LaunchError(program.problem, program.hint)
    fields = {"EVENT": notice.event, "NODE": notice.node, "TITLE": notice.title, "TEXT": notice.text}
    env = ENVIRONMENT | {f"NOTICE_{name}": value for name, value in fields.items()}
    stdin, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(as_json(notice))  # less than a pipe holds
        code, output = run_program((files.real(path),), time.sleep, env, seconds, stdin)
    except OSError as error:
        raise LaunchError(
            f"{path} can't be run: {error.strerror}", f"is the program of its first line there? head -n 1 {quote(path)}"
        ) from None
    finally:
        os.close(stdin)
    if code != 0:
        end = f"did not end within {seconds:g} s" if code is None else f"ended with exit code {code}"
        raise LaunchError(f"{path} {end}: {first_line(output)}", f"run it by hand: {path}")


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
        state = notices.enqueue(state, notices_to_send, self.settings.configured_ways, time.time())
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
                self._keep_state(notices.sent(self.state, queued, way))

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
