"""The kernel's log of this boot: a GPU lost until a reboot, processes killed for memory, a NIC that was reset."""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, warn
from sparkd.base.host import Host, kernel
from sparkd.base.host.kernel import Record
from sparkd.base.host.kernel_events import KINDS, Event, parse_event
from sparkd.base.lib.times import format_duration as age

MOST_OF_A_KIND = 32
"""How many different events of a kind are kept, such as Xids by device and code: the latest. So a flood of one kind
hides no other."""
XID, RECOVERY, DRIVER_LOADED, DRIVER_NO_MEMORY = "xid", "gpu-recovery", "driver-loaded", "driver-no-memory"
_JUDGED = {DRIVER_LOADED, DRIVER_NO_MEMORY} | {
    kind.name for kind in KINDS.values() if any(effect.preflight for effect in (kind, *kind.codes.values()))
}
"""Kinds that matter before a launch."""


def find_events(records: Iterable[Record]) -> tuple[Event, ...]:
    """The events that matter before a launch, each kind, device and code once, in the order of their last messages."""
    events: dict[tuple[str, str, int], Event] = {}
    for record in records:
        if (event := parse_event(record)) is None or event.kind not in _JUDGED:
            continue
        # Of recovery actions of a device only the last one counts, whatever its code.
        key = (event.kind, event.device, 0 if event.kind == RECOVERY else event.code)
        if (earlier := events.pop(key, None)) is not None:
            events[key] = replace(event, count=earlier.count + 1)
            continue
        events[key] = event
        keys_of_kind = [other for other in events if other[0] == event.kind]
        if len(keys_of_kind) > MOST_OF_A_KIND:
            del events[keys_of_kind[0]]
    return tuple(events.values())


RECENT_SECONDS = 24 * 3600.0
"""How long faults warn that the machine has recovered from."""
SINCE_BOOT_SECONDS = 60.0
"""A log that begins within the first minute is complete."""


class KernelLogFacts(Struct, frozen=True):
    uptime_seconds: float
    begins_seconds: float
    """Time of the oldest message in the log, since boot; 0 where the log is complete."""
    events: tuple[Event, ...]
    error: str = ""
    absent: bool = False


class KernelLog(Check[KernelLogFacts], frozen=True):
    uses_gpu: bool = True
    id = "kernel-log"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> KernelLogFacts:
        uptime_seconds = host.uptime_seconds()
        records = kernel.read_log(host.files)
        try:
            first_record = next(records, None)
            events = find_events(chain((first_record,), records)) if first_record else ()
        except (FileNotFoundError, NotADirectoryError):
            return KernelLogFacts(uptime_seconds, 0.0, (), absent=True)
        except OSError as error:
            return KernelLogFacts(uptime_seconds, 0.0, (), error=error.strerror or type(error).__name__)
        begins_seconds = round(first_record.seconds, 3) if first_record and first_record.sequence else 0.0
        return KernelLogFacts(uptime_seconds, begins_seconds, events)

    def judge(self, facts: KernelLogFacts) -> Verdict:
        if facts.absent:
            return ok("this node has no kernel log of its own")
        if facts.error:
            hint = "sudo sparkd preflight --dry-run; in a container it can't be read, look on its host: sudo dmesg"
            return warn(f"the kernel's log can't be read: {facts.error}", hint)
        return combine_verdicts(self._find_problems(facts), _describe_good(facts))

    def _find_problems(self, facts: KernelLogFacts) -> Iterator[Verdict]:
        loaded_at = max((event.last_seconds for event in facts.events if event.kind == DRIVER_LOADED), default=0.0)
        resets = (event for event in facts.events if event.kind == RECOVERY and event.code == 0)
        recovered_at = {event.device: event.last_seconds for event in resets}
        for event in facts.events:
            if event.kind in (XID, RECOVERY):
                is_over = event.last_seconds < max(loaded_at, recovered_at.get(event.device, 0.0))
                if is_over or not self.uses_gpu:
                    continue
            effect, reason = event.effect, event.reason + _format_time(facts, event)
            if effect.preflight == "block":
                yield block(reason, effect.hint, needs_person=True, action=effect.action)
            elif effect.preflight == "warn" and facts.uptime_seconds - event.last_seconds <= RECENT_SECONDS:
                yield warn(reason, effect.hint, action=effect.action)


def _describe_good(facts: KernelLogFacts) -> str:
    good = "nothing bad in the kernel's log"
    if facts.begins_seconds > SINCE_BOOT_SECONDS:
        good += f", which goes back {age(facts.uptime_seconds - facts.begins_seconds)} of {age(facts.uptime_seconds)}"
    count = sum(event.count for event in facts.events if event.kind == DRIVER_NO_MEMORY)
    return f"{good}; NV_ERR_NO_MEMORY {_count_times(count)}, as healthy engines cause it too" if count else good


def _format_time(facts: KernelLogFacts, event: Event) -> str:
    repeats = f", {_count_times(event.count)}" if event.count > 1 else ""
    # The kernel stamps its log with a clock of its own, which may be a little ahead.
    return f"{repeats}, {age(max(0.0, facts.uptime_seconds - event.last_seconds))} ago"


def _count_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
