"""The kernel's log of this boot: a GPU lost until a reboot, processes killed for memory, a NIC that was reset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, verdict, warn
from sparkd.agent.preflight.checks.gpu import OPEN_MODULES, POWER_CYCLE
from sparkd.base.host import Host, kernel
from sparkd.base.host.kernel import Record
from sparkd.base.lib.text import sanitize
from sparkd.base.status.model import format_duration as age

MOST_OF_A_KIND = 32
"""Distinct events kept of one kind, the latest: processes killed for memory, Xids by device and code. The limit is
per kind, so that a flood of one hides no other."""


class Kind(Enum):
    XID = "xid"
    RECOVERY = "gpu-recovery-action"
    DRIVER_LOADED = "driver-loaded"
    OUT_OF_MEMORY = "out-of-memory"
    PCIE_FATAL = "pcie-fatal"
    NIC_RESET = "nic-reset"
    DRIVER_NO_MEMORY = "driver-no-memory"


class Event(Struct, frozen=True):
    kind: Kind
    subject: str
    """The device, or the killed process."""
    code: int
    """The Xid, or the recovery action; else 0."""
    count: int
    last_seconds: float
    """Since boot."""
    text: str


_GPU = r"\((?:PCI:)?([0-9a-fA-F]+(?::[0-9a-fA-F]+)+(?:\.\d+)?)\)"
"""An address and nothing else: any user's program that crashes has the kernel begin a line with its name."""
_PATTERNS = (
    (Kind.RECOVERY, re.compile(rf"NVRM: Xid {_GPU}: 154, .*\bto 0x([0-9a-fA-F]+)")),
    (Kind.XID, re.compile(rf"NVRM: Xid {_GPU}: (\d+)\b")),
    (Kind.DRIVER_LOADED, re.compile(r"NVRM: loading NVIDIA UNIX ()")),
    # Of the node, not of a container that reached its own limit: that begins with "Memory cgroup".
    (Kind.OUT_OF_MEMORY, re.compile(r"Out of memory[^:]*: Killed process \d+ \((.*?)\) total-vm")),
    (Kind.PCIE_FATAL, re.compile(r"\S+ (\S+): AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\)")),
    (Kind.NIC_RESET, re.compile(r"mlx5_core (\S+): mlx5_pci_slot_reset\b")),
    (Kind.DRIVER_NO_MEMORY, re.compile(r"NVRM: .*\[NV_ERR_NO_MEMORY\]()")),
)


def find_events(records: Iterable[Record]) -> tuple[Event, ...]:
    """In the order of their last messages."""
    found: dict[tuple[Kind, str, int], Event] = {}
    for record in records:
        if (event := parse_event(record)) is None:
            continue
        # The last recovery action is what counts, whatever it was before.
        key = (event.kind, event.subject, 0 if event.kind is Kind.RECOVERY else event.code)
        before = found.pop(key, None)
        found[key] = event if before is None else replace(event, count=before.count + 1)
        alike = [one for one in found if one[0] is event.kind] if before is None else []
        if len(alike) > MOST_OF_A_KIND:
            del found[alike[0]]
    return tuple(found.values())


def parse_event(record: Record) -> Event | None:
    """None for messages that do not matter, such as mlx5's warning of 27 W, which healthy machines log at each boot."""
    for kind, pattern in _PATTERNS:
        if (matched := pattern.match(record.text)) is None:
            continue
        subject = sanitize(matched[1], 40)
        base = 16 if kind is Kind.RECOVERY else 10
        code = int(matched[2][:8], base) if kind in (Kind.XID, Kind.RECOVERY) else 0
        return Event(kind, subject, code, 1, round(record.seconds, 3), sanitize(record.text))
    return None


RECENT_SECONDS = 24 * 3600.0
"""Faults that the machine has recovered from warn for so long."""
SINCE_BOOT_SECONDS = 60.0
"""A log that begins within the first minute is complete."""
REBOOT = "reboot this node"

XIDS = {
    48: ("an uncorrectable memory error", ""),
    79: ("the GPU has fallen off the bus", POWER_CYCLE),
    94: ("a contained memory error", ""),
    95: ("an uncontained memory error", ""),
    119: ("the GPU's firmware does not answer", REBOOT),
    120: ("the GPU's firmware has failed", REBOOT),
    140: ("an uncorrectable memory error escaped", REBOOT),
    169: ("the GPU can't be initialised, as with proprietary kernel modules on GB10", OPEN_MODULES),
}
"""Meaning, and remedy; empty where the GPU keeps working. Those of NVIDIA's catalog that mean a faulty GPU: an engine's
own faults (13, 31, 43, 45) end with the engine."""
RECOVERIES = {1: "a reset", 2: "a reboot", 4: "a reset"}
"""Actions that Xid 154 requires; 0 is none, 3 concerns links between GPUs. A reboot resets too."""

WARNINGS = (
    (
        Kind.OUT_OF_MEMORY,
        "the node ran out of memory and the kernel killed",
        "leave more: raise memory.headroom_gib, or stop other work",
    ),
    (
        Kind.NIC_RESET,
        "a PCIe error reset the ConnectX",
        "reboot this node before it serves in a cluster; if it comes again: fwupdmgr update",
    ),
    (Kind.PCIE_FATAL, "a fatal PCIe error at", "if it comes again: fwupdmgr update; journalctl -k -b -g AER"),
)


class KernelLogFacts(Struct, frozen=True):
    uptime_seconds: float
    begins_seconds: float
    """Time of the oldest message in the log, since boot."""
    events: tuple[Event, ...]
    error: str = ""
    absent: bool = False


class KernelLog(Check[KernelLogFacts], frozen=True):
    uses_gpu: bool = True
    id = "kernel-log"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> KernelLogFacts:
        uptime = host.uptime_seconds()
        records = kernel.read_log(host.files)
        try:
            first = next(records, None)
            events = find_events(chain((first,), records)) if first else ()
        except (FileNotFoundError, NotADirectoryError):
            return KernelLogFacts(uptime, 0.0, (), absent=True)
        except OSError as error:
            return KernelLogFacts(uptime, 0.0, (), error=error.strerror or type(error).__name__)
        return KernelLogFacts(uptime, round(first.seconds, 3) if first and first.sequence else 0.0, events)

    def judge(self, facts: KernelLogFacts) -> Verdict:
        if facts.absent:
            return ok("this node has no kernel log of its own")
        if facts.error:
            hint = "run as root; in a container it can't be, look on its host: dmesg"
            return warn(f"the kernel's log can't be read: {facts.error}", hint)
        gpu = self._gpu(facts) if self.uses_gpu else iter(())
        return verdict([*gpu, *_others(facts)], _good(facts))

    def _gpu(self, facts: KernelLogFacts) -> Iterator[Verdict]:
        loaded = max((one.last_seconds for one in facts.events if one.kind is Kind.DRIVER_LOADED), default=0.0)
        resets = (one for one in facts.events if one.kind is Kind.RECOVERY and one.code == 0)
        recovered = {one.subject: one.last_seconds for one in resets}
        for event in facts.events:
            if event.last_seconds < max(loaded, recovered.get(event.subject, 0.0)):
                continue
            when = _format_time(facts, event)
            if event.kind is Kind.RECOVERY and event.code in RECOVERIES:
                reason = f"Xid 154: the GPU {event.subject} requires {RECOVERIES[event.code]}{when}"
                yield block(reason, REBOOT, needs_person=True)
            elif event.kind is Kind.XID and event.code in XIDS:
                words, remedy = XIDS[event.code]
                reason = f"Xid {event.code}: {words} ({event.subject}){when}"
                if remedy:
                    yield block(reason, remedy, needs_person=True)
                elif _recent(facts, event):
                    yield warn(reason, "if it comes again: nvidia-smi -q -d ECC, and NVIDIA's support")


def _others(facts: KernelLogFacts) -> Iterator[Verdict]:
    for kind, words, hint in WARNINGS:
        for event in facts.events:
            if event.kind is kind and _recent(facts, event):
                yield warn(f"{words} {event.subject}{_format_time(facts, event)}", hint)


def _good(facts: KernelLogFacts) -> str:
    good = "nothing bad in the kernel's log"
    if facts.begins_seconds > SINCE_BOOT_SECONDS:
        good += f", which goes back {age(facts.uptime_seconds - facts.begins_seconds)} of {age(facts.uptime_seconds)}"
    lacked = sum(one.count for one in facts.events if one.kind is Kind.DRIVER_NO_MEMORY)
    return f"{good}; NV_ERR_NO_MEMORY {_times(lacked)}, as healthy engines cause it too" if lacked else good


def _recent(facts: KernelLogFacts, event: Event) -> bool:
    return facts.uptime_seconds - event.last_seconds <= RECENT_SECONDS


def _format_time(facts: KernelLogFacts, event: Event) -> str:
    often = f", {_times(event.count)}" if event.count > 1 else ""
    # The kernel stamps its log with a clock of its own, which may be a little ahead.
    return f"{often}, {age(max(0.0, facts.uptime_seconds - event.last_seconds))} ago"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
