"""launch-history.json, which decides the next start: failed launches, recent boots, the last end, checked images.

Each failed load can leak driver memory on GB10, and systemd's own growing delays never shrink again, so sparkd counts.
A launch is recorded before its container starts, and closed at every end that sparkd survives. A launch that a later
boot finds open ended with its machine: by a power cut, a freeze, or a kernel crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from sparkd.base.host.files import Files
from sparkd.base.lib.errors import Cause, ExitCode
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import DAY_SECONDS, seconds_since
from sparkd.base.state.file import PUBLIC, Report, StateFile, ignore_report
from sparkd.base.status.model import RestartReport

BACKOFF_SECONDS = (0, 5, 15, 60, 300)
"""Wait before a launch after 0, 1, 2, 3, 4 failed launches in a row. After five a person is needed."""
BOOTS_KEPT = 8
"""A good start removes the boots before it."""
IMAGES_KEPT = 32
"""Images with what their recipes assert; the oldest results go first."""
MOST_FACTS, NAME_LENGTH, VALUE_LENGTH = 400, 300, 1200
"""Limits of `tried` and of `good`, which both fit into the file even if each character takes twelve bytes of JSON."""
IMAGE = "image.identity"
"""The fact that identifies an image."""
REASON_LIMIT, FAULT_LIMIT = 1000, 400
ENDS_KEPT, END_LENGTH = 50, 200
LOADING, SERVING = "loading", "serving"
STOPPED = "stop requested"
KILLED = "the previous agent exited without recording a reason (killed, crashed, or power loss)"


class OpenLaunch(Struct, frozen=True):
    """A launch under way. Read by a later process, it shows that its agent died, or an earlier boot ended."""

    digest: str
    boot_id: str


class End(Struct, frozen=True):
    """Why a process ended. Redacted, for reports."""

    reason: str
    code: int | None = None
    """None where the process was killed."""
    hint: str = ""
    phase: str = ""
    at: str = ""
    """UTC, ISO 8601."""
    cause: str = ""
    """A `Cause`; empty in files of earlier versions. Text, because a later version may know more of them."""
    action: str = ""
    """An `Action`, where it is known better than by the cause."""

    def __str__(self) -> str:
        return self.reason if self.code is None else f"{self.reason} (exit {self.code})"


class Boot(Struct, frozen=True):
    """The last launch in a boot of the machine."""

    boot_id: str
    digest: str
    phase: str
    """LOADING or SERVING."""
    open: bool
    """Whether its end was not recorded."""


class MachineEnd(Struct, frozen=True):
    """How the boot before `boot_id` ended."""

    boot_id: str
    kind: str
    """ordered, power-lost, kernel, watchdog, memory, heat, unknown."""
    evidence: str
    at: str

    def __str__(self) -> str:
        return sanitize(f"{self.kind}: {self.evidence}", END_LENGTH)


class AssertResult(Struct, frozen=True):
    fault: str
    """What the first assertion that failed has found; empty where all hold."""
    seconds: float
    at: str
    """UTC, ISO 8601."""
    unbuilt: str = ""
    """Version of FlashInfer where the image lacks its prebuilt kernels."""


class LaunchHistory(Struct, frozen=True):
    failures: dict[str, Annotated[int, Meta(ge=1)]] = field(default_factory=dict)
    """Failed launches in a row, by plan digest, oldest entry first."""
    last: dict[str, End] = field(default_factory=dict)
    """The last failure of each plan. Later processes may have ended for other reasons, before a launch."""
    open: OpenLaunch | None = None
    boots: tuple[Boot, ...] = ()
    """Boots since the last good start, oldest first."""
    tried: Mapping[str, str] = field(default_factory=dict)
    """Facts of the last launch: versions, image, values of the plan."""
    good: Mapping[str, str] = field(default_factory=dict)
    """Facts of the last good start."""
    good_caches: tuple[str, ...] = ()
    """Compile caches with files in them at the last good start."""
    last_exit: End | None = None
    ends: tuple[End, ...] = ()
    """Ends before `last_exit`, of processes whose end nobody requested, newest last, with short reasons."""
    asserts: Mapping[str, AssertResult] = field(default_factory=dict)
    """Whether images have what recipes assert of them, by `_asserts_key`, newest last. An image is checked once."""
    machine_end: MachineEnd | None = None
    """The last end of the machine that is known."""

    @property
    def last_cause(self) -> End | None:
        """Why the last process ended; None after a requested stop."""
        last = self.last_exit
        return None if last is None or last.code == ExitCode.GOOD else last

    def restarts(self, now: datetime) -> tuple[RestartReport, ...]:
        """Ends of the last 24 hours, counted by cause, for a process that begins at `now`."""
        reports: dict[str, RestartReport] = {}
        for end in self._all_ends(now.isoformat(timespec="milliseconds")):
            if (age := seconds_since(end.at, now)) is not None and age < DAY_SECONDS:
                before = reports.pop(end.cause, None)
                reports[end.cause] = RestartReport(end.cause, 1 + (before.count if before else 0), end.at, end.reason)
        return tuple(reports.values())

    def _all_ends(self, now: str) -> tuple[End, ...]:
        """All ends that nobody requested, newest last. A killed process counts as ended at `now`."""
        if (last := self.last_cause) is None:
            return self.ends
        last = replace(last, reason=last.reason[:END_LENGTH], hint="", at=now if last.code is None else last.at)
        return (*self.ends, last)[-ENDS_KEPT:]

    def wait_seconds(self, digest: str) -> int | None:
        """Backoff before the next launch of this plan; None: too many failed, a person is needed."""
        count = self.failures.get(digest, 0)
        return BACKOFF_SECONDS[count] if count < len(BACKOFF_SECONDS) else None

    def last_failure(self, digest: str) -> str:
        """Empty where unknown."""
        failure = self.last.get(digest)
        return str(replace(failure, reason=sanitize(failure.reason, REASON_LIMIT))) if failure else ""

    def assert_result(self, image_id: str, program: str) -> AssertResult | None:
        """None where this image was not checked yet. The text is safe to show."""
        result = self.asserts.get(_asserts_key(image_id, program))
        return result and replace(result, fault=sanitize(result.fault, FAULT_LIMIT))

    def record_asserts(self, image_id: str, program: str, result: AssertResult) -> LaunchHistory:
        """`program`: the assertions as bash. Another image or another assertion is checked again."""
        key = _asserts_key(image_id, program)
        others = [(name, known) for name, known in self.asserts.items() if name != key]
        return replace(self, asserts=dict([*others, (key, result)][-IMAGES_KEPT:]))

    def boots_before(self, boot_id: str) -> tuple[Boot, ...]:
        return tuple(boot for boot in self.boots if boot.boot_id != boot_id)

    def recover(self, boot_id: str, now: str) -> LaunchHistory:
        """A new process: a launch that is still open in this boot counts as failed, because its agent died."""
        killed = End(KILLED, at=now, cause=Cause.AGENT_KILLED)
        counted = self.record_failure(self.open.digest, killed) if self.open and self.open.boot_id == boot_id else self
        return replace(counted, ends=self._all_ends(now)).record_end(boot_id, killed)

    def record_machine_end(self, end: MachineEnd, booted_at: str) -> LaunchHistory:
        """An agent that left no reason, and began before `booted_at` (a stamp of `utc_now`), ended with the machine."""
        last = self.last_exit
        unexplained = last is not None and last.code is None and last.at < booted_at
        if last is None or not unexplained or end.kind == "ordered":
            return replace(self, machine_end=end)
        reason = f"the machine ended while the agent ran: {end}"
        return replace(self, machine_end=end, last_exit=replace(last, reason=reason, hint="journalctl -b -1 -e"))

    def begin(self, digest: str, boot_id: str) -> LaunchHistory:
        return replace(self, open=OpenLaunch(digest, boot_id))

    def record_launch(self, digest: str, boot_id: str, facts: Mapping[str, str]) -> LaunchHistory:
        boots = (*self.boots_before(boot_id), Boot(boot_id, digest, LOADING, open=True))[-BOOTS_KEPT:]
        texts = {name[:NAME_LENGTH]: value[:VALUE_LENGTH] for name, value in list(facts.items())[:MOST_FACTS]}
        return replace(self, open=OpenLaunch(digest, boot_id), boots=boots, tried=texts)

    def record_serving(self, boot_id: str, filled_caches: tuple[str, ...] | None = ()) -> LaunchHistory:
        """The launch of this boot is a good start: earlier boots no longer count.

        `filled_caches`: caches with files in them; None where unknown: the image keeps those of its last good start.
        """
        boots = tuple(replace(boot, phase=SERVING) for boot in self.boots if boot.boot_id == boot_id)
        if filled_caches is None:
            same_image = self.good.get(IMAGE) == self.tried.get(IMAGE)
            filled_caches = self.good_caches if same_image else ()
        return replace(self, boots=boots, good=self.tried, good_caches=filled_caches)

    def record_failure(self, digest: str, end: End) -> LaunchHistory:
        end = replace(end, reason=end.reason[:REASON_LIMIT], hint=end.hint[:REASON_LIMIT])
        rest = self.reset(digest)
        counts = {**rest.failures, digest: self.failures.get(digest, 0) + 1}
        failures = dict(list(counts.items())[-16:])
        last = {key: ended for key, ended in {**rest.last, digest: end}.items() if key in failures}
        return replace(rest, failures=failures, last=last)

    def reset(self, digest: str) -> LaunchHistory:
        """Forget the failures of a plan that is proven in service, or that was handed to a person."""
        failures = {key: count for key, count in self.failures.items() if key != digest}
        last = {key: end for key, end in self.last.items() if key != digest}
        return replace(self, failures=failures, last=last, open=None)

    def record_end(self, boot_id: str, end: End) -> LaunchHistory:
        """A process ended. Where it needs a person, earlier boots no longer count."""
        boots = tuple(replace(boot, open=boot.open and boot.boot_id != boot_id) for boot in self.boots)
        return replace(self, open=None, boots=() if end.code == ExitCode.NEEDS_PERSON else boots, last_exit=end)


def _asserts_key(image_id: str, program: str) -> str:
    return sha256(f"{image_id}\n{program}".encode()).hexdigest()


FILE = StateFile(LaunchHistory, "launch-history.json", PUBLIC)


def read_history(files: Files, report: Report = ignore_report) -> LaunchHistory:
    """Empty where there is no usable file. Raises OSError."""
    return FILE.load(files, report) or LaunchHistory()
