"""Follows the kernel's log while the agent runs: what matters to an engine is reported once, with its action.

The log is opened in a thread and read in the loop, where no read of it waits. A flood costs one event for each kind and
device, and a tenth of a core at most: what the kernel overwrites meanwhile is lost, which is reported too.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from msgspec import Struct, field

from sparkd.base.host import Host, kernel
from sparkd.base.host.kernel_events import Event, parse_event
from sparkd.base.lib.errors import Action
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop, Outcome
from sparkd.base.lib.times import seconds_since, utc_now
from sparkd.base.status.model import FindingReport
from sparkd.base.status.publisher import Reporter

REPEAT_SECONDS = 3600.0
"""Time after which a message of the same kind and device is an event again."""
MOST_DEVICES = 8
"""At most so many devices of one kind and code are logged in that time, because a user's process can count as a device,
and a user can start many. Others are only counted; urgent messages are exempt from this limit.
"""
ID = "kernel-message"
MOST_FINDINGS, KEPT_SECONDS = 16, 24 * 3600.0
"""The report keeps so many of the latest findings, each for this long."""
BATCH_RECORDS, PAUSE_SECONDS = 200, 0.1
"""Most records in one turn of the loop, and the pause after it. A record takes 20 µs, so a flood takes 4 % of a core;
the kernel's ring has room for some ten thousand."""
HINT = "nothing is to be done; all that is left: journalctl -k -b"


def follow_kernel_log(host: Host, loop: MainLoop, reporter: Reporter, events: Events) -> None:
    """Follow it in the loop from now on. A node without a log of its own, as a container, has nothing to follow."""
    watch = KernelLogWatch(reporter, events)

    def follow_opened(descriptor: Outcome[int]) -> None:
        try:
            loop.spawn(watch.follow(descriptor.result()))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            watch.report_failure(error)

    loop.start(partial(kernel.open_log_end, host.files), "kernel-log", follow_opened)


class KernelLogWatch(Struct):
    """What was reported of the kernel's log. Used by the main thread."""

    reporter: Reporter
    events: Events
    clock: Callable[[], float] = time.monotonic
    _reported: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """Times by kind, device and code."""
    _overrun_at: float = float("-inf")
    _counts: Counter[str] = field(default_factory=Counter)
    _findings: tuple[tuple[float, FindingReport], ...] = ()
    _pending: bytes = b""

    def __post_init__(self) -> None:
        """Keep what an agent before this one has reported, where this one has taken its rank over."""
        now, now_utc, reported = self.clock(), datetime.now(UTC), self.reporter.report.findings
        # One from an agent whose version gave findings no time is kept as if it were new.
        self._findings = tuple(
            (now - (seconds_since(known.at or "", now_utc) or 0.0), known) for known in reported if known.id == ID
        )

    async def follow(self, fd: int) -> None:
        """Runs until it is cancelled, also after the log can't be read any more. Closes `fd`."""
        loop = asyncio.get_running_loop()
        try:
            while self.read_batch(partial(os.read, fd)):
                await asyncio.sleep(PAUSE_SECONDS)
                readable = asyncio.Event()
                loop.add_reader(fd, readable.set)
                try:
                    with suppress(TimeoutError):  # without news, only old findings are dropped
                        async with asyncio.timeout(REPEAT_SECONDS):
                            await readable.wait()
                finally:
                    loop.remove_reader(fd)
            await loop.create_future()  # never done
        finally:
            os.close(fd)

    def read_batch(self, read: Callable[[int], bytes]) -> bool:
        """Read what there is, up to a batch; return whether more may come. `read`: the log's read(2)."""
        for _ in range(BATCH_RECORDS):
            try:
                chunk = read(kernel.RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten before it was read: the next read returns the oldest record left
                if self.clock() - self._overrun_at >= REPEAT_SECONDS:
                    self._overrun_at = self.clock()
                    self.events.warning("kernel.log.overrun", hint=HINT)
                continue
            except OSError as error:
                self.report_failure(error)
                return False
            if not chunk:
                return False
            *lines, rest = (self._pending + chunk).split(b"\n")
            self._pending = rest if len(rest) <= kernel.RECORD_BYTES else b""
            for record in filter(None, map(kernel.parse_record, lines)):
                if (event := parse_event(record)) is not None:
                    self._note(event)
        self._report()
        return True

    def _report(self) -> None:
        report, now = self.reporter.report, self.clock()
        self._findings = tuple((at, finding) for at, finding in self._findings if now - at < KEPT_SECONDS)
        others = (finding for finding in report.findings if finding.id != ID)
        findings = (*others, *(finding for _, finding in self._findings))
        if (findings, self._counts) != (report.findings, report.kernel_counts):
            self.reporter.update(findings=findings, kernel_counts=dict(self._counts))

    def report_failure(self, error: OSError) -> None:
        hint = "journalctl -k -f shows it; the next start of sparkd tries again"
        self.events.warning("kernel.log.failed", reason=error.strerror or str(error), hint=hint)

    def _note(self, event: Event) -> None:
        effect = event.effect
        name = f"{event.kind} {effect.action.value}"
        self._counts[name] += 1
        urgent = effect.action in (Action.REBOOT, Action.POWER_CYCLE)
        if not self._begin_logging((event.kind, event.device, event.code), urgent=urgent):
            return
        log = self.events.error if urgent else self.events.warning
        if effect.action is Action.NONE:
            log = self.events.info
        log(
            "kernel.message.logged",
            kind=event.kind,
            action=effect.action.value,
            reason=event.reason,
            hint=effect.hint,
            text=event.text,
            count=self._counts[name],
        )
        if effect.action is not Action.NONE:
            reason = f"{event.reason}, {time.strftime('%d %b %H:%M UTC', time.gmtime())}"
            finding = FindingReport(ID, "warn", reason, effect.hint, effect.action.value, utc_now())
            others = [(at, old) for at, old in self._findings if not old.reason.startswith(f"{event.reason}, ")]
            self._findings = (*others, (self.clock(), finding))[-MOST_FINDINGS:]
            self._report()
            self.reporter.publish()

    def _begin_logging(self, key: tuple[str, str, int], *, urgent: bool) -> bool:
        """Note that a key is logged now, and return True; or return False where it was within REPEAT_SECONDS, or where
        MOST_DEVICES others of its kind and code were, and it is not urgent.
        """
        now = self.clock()
        if now - self._reported.get(key, float("-inf")) < REPEAT_SECONDS:
            return False
        self._reported = {known: at for known, at in self._reported.items() if now - at < REPEAT_SECONDS}
        device_count = sum((kind, code) == (key[0], key[2]) for kind, _, code in self._reported)
        if device_count >= MOST_DEVICES and not urgent:
            return False
        self._reported[key] = now
        return True
