"""The kernel's log of this boot: a GPU lost until a reboot, processes killed for memory, a NIC that was reset."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec import Struct

from sparkd.host import kmsg
from sparkd.preflight import kernel_events
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.gpu import OPEN_MODULES, POWER_CYCLE
from sparkd.preflight.kernel_events import Event, Kind
from sparkd.preflight.problems import Problem, verdict
from sparkd.report.ages import words as age

if TYPE_CHECKING:
    from sparkd.host import Host

RECENT_SECONDS = 24 * 3600.0
"""What a machine has got over warns for so long."""
SINCE_BOOT_SECONDS = 60.0
"""A log that begins within the first minute has the boot."""
REBOOT = "reboot this node"


class _Xid(NamedTuple):
    words: str
    remedy: str = ""
    """What brings the GPU back; empty where it works on."""


XIDS = {
    48: _Xid("an uncorrectable memory error"),
    79: _Xid("the GPU has fallen off the bus", POWER_CYCLE),
    94: _Xid("a contained memory error"),
    95: _Xid("an uncontained memory error"),
    119: _Xid("the GPU's firmware does not answer", REBOOT),
    120: _Xid("the GPU's firmware has failed", REBOOT),
    140: _Xid("an uncorrectable memory error escaped", REBOOT),
    169: _Xid("the GPU can't be initialised, as with proprietary kernel modules on GB10", OPEN_MODULES),
}
"""Those of NVIDIA's catalog that mean a sick GPU. An engine's own faults (13, 31, 43, 45) end with the engine."""
RECOVERIES = {1: ("a reset", REBOOT), 2: ("a reboot", REBOOT), 4: ("a reset", REBOOT)}
"""Actions that Xid 154 asks for; 0 is none, 3 concerns links between GPUs. A reboot resets too."""

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
    """When the oldest message was said that the log still has, since boot."""
    events: tuple[Event, ...]
    error: str = ""
    """Why the log can't be read; empty where it can, or where there is none."""
    absent: bool = False


class KernelLog(Check[KernelLogFacts], frozen=True):
    """What the kernel has said since boot that a launch should know."""

    uses_gpu: bool = True
    id: ClassVar[str] = "kernel-log"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="/dev/kmsg",
        source="NVIDIA's Xid catalog; MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 146; vLLM issue 56824",
        page="""\
Reads what the kernel has said since boot; a message that was repeated counts once. Messages of other programs in the
log are left out.

  block    the GPU's driver reported, and nothing since says that it recovered:
             Xid 79        the GPU has fallen off the bus: shut down, unplug the node for 60 s
             Xid 119, 120  the GPU's firmware does not answer, or has failed: reboot
             Xid 140       an uncorrectable memory error escaped: reboot
             Xid 154       asks for a reset or a reboot: reboot, which resets too
             Xid 169       the GPU can't be initialised: GB10 needs the open kernel modules
           A person is needed: each launch on such a GPU fails, and may leak memory. The driver loaded anew, or Xid 154
           with action 0x0, ends it. Plans without a GPU are not held up.
  warn     within the last 24 hours: Xid 48, 94 or 95 (memory errors that ended a process), a process that the kernel
           killed because the node ran out of memory, a fatal PCIe error (AER), or a ConnectX that was reset after one.
           Or the log can't be read: CAP_SYSLOG is needed where kernel.dmesg_restrict is set.

Never a reason to warn: mlx5's "insufficient power on the PCIe slot (27W)", which healthy nodes say at each boot; a
container that reached its own memory limit; and the driver's NV_ERR_NO_MEMORY, which healthy engines cause while they
start. The latter is counted, for whoever looks into a shortage.

The log is a ring: where its beginning is lost, `ok` says how far it goes back. More: journalctl -k -b. To launch all
the same: preflight.downgrade = ["kernel-log"].""",
    )

    def probe(self, host: Host) -> KernelLogFacts:
        uptime = host.uptime_seconds()
        records = kmsg.records(host.files)
        try:
            first = next(records, None)
            events = kernel_events.find(chain((first,), records)) if first else ()
        except (FileNotFoundError, NotADirectoryError):
            return KernelLogFacts(uptime, 0.0, (), absent=True)
        except OSError as error:
            return KernelLogFacts(uptime, 0.0, (), error=error.strerror or type(error).__name__)
        return KernelLogFacts(uptime, round(first.seconds, 3) if first and first.sequence else 0.0, events)

    def judge(self, facts: KernelLogFacts) -> Verdict:
        if facts.absent:
            return Verdict(Level.OK, "this node has no kernel log of its own")
        if facts.error:
            return Verdict(
                Level.WARN,
                f"the kernel's log can't be read: {facts.error}",
                "run as root; in a container it can't be, look on its host: dmesg",
            )
        gpu = self._gpu(facts) if self.uses_gpu else iter(())
        return verdict([*gpu, *_others(facts)], _good(facts))

    def _gpu(self, facts: KernelLogFacts) -> Iterator[Problem]:
        loaded = max((one.last_seconds for one in facts.events if one.kind is Kind.DRIVER_LOADED), default=0.0)
        recovered = {
            one.subject: one.last_seconds for one in facts.events if one.kind is Kind.RECOVERY and one.code == 0
        }
        for event in facts.events:
            over = event.last_seconds < max(loaded, recovered.get(event.subject, 0.0))
            told = _told(facts, event)
            if event.kind is Kind.RECOVERY and event.code in RECOVERIES and not over:
                wants, remedy = RECOVERIES[event.code]
                yield Problem(Level.BLOCK, f"Xid 154: the GPU {event.subject} asks for {wants}{told}", remedy, (), True)
            xid = XIDS.get(event.code) if event.kind is Kind.XID else None
            if xid is None:
                continue
            reason = f"Xid {event.code}: {xid.words} ({event.subject}){told}"
            if xid.remedy and not over:
                yield Problem(Level.BLOCK, reason, xid.remedy, needs_person=True)
            elif _recent(facts, event) and not over:
                yield Problem(Level.WARN, reason, "if it comes again: nvidia-smi -q -d ECC, and NVIDIA's support")


def _others(facts: KernelLogFacts) -> Iterator[Problem]:
    for kind, words, hint in WARNINGS:
        for event in facts.events:
            if event.kind is kind and _recent(facts, event):
                yield Problem(Level.WARN, f"{words} {event.subject}{_told(facts, event)}", hint)


def _good(facts: KernelLogFacts) -> str:
    good = "nothing bad in the kernel's log"
    if facts.begins_seconds > SINCE_BOOT_SECONDS:
        good += f", which goes back {age(facts.uptime_seconds - facts.begins_seconds)} of {age(facts.uptime_seconds)}"
    lacked = sum(one.count for one in facts.events if one.kind is Kind.DRIVER_NO_MEMORY)
    return f"{good}; NV_ERR_NO_MEMORY {_times(lacked)}, as healthy engines cause it too" if lacked else good


def _recent(facts: KernelLogFacts, event: Event) -> bool:
    return facts.uptime_seconds - event.last_seconds <= RECENT_SECONDS


def _told(facts: KernelLogFacts, event: Event) -> str:
    often = f", {_times(event.count)}" if event.count > 1 else ""
    # The kernel stamps its log with a clock of its own, which may be a little ahead.
    return f"{often}, {age(max(0.0, facts.uptime_seconds - event.last_seconds))} ago"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
