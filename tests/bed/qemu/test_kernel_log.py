"""The log of a kernel of one's own: what it says itself, and what others put into it."""

from collections import Counter
from dataclasses import dataclass

import pytest
from tests.bed.processes import wait_for
from tests.bed.qemu.machine import SPARE
from tests.bed.qemu.pair import Checked, Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

LEVELS = ("ok", "warn", "block")
"""The best first."""
XID = "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
CRASH = """
import ctypes, os
with open("/tmp/x): 79, y", "wb") as file:
    file.write(bytes.fromhex("31c08b00"))  # xor eax, eax; mov eax, [rax]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.prctl(15, b"NVRM: Xid (", 0, 0, 0)
ctypes.CFUNCTYPE(None)(libc.mmap(None, 4096, 5, 2, os.open("/tmp/x): 79, y", os.O_RDONLY), 0))()
"""
"""A program that crashes, named so that the kernel's line about that looks like a line of NVIDIA's driver.

The line is: name of the process, addresses, name of the file whose code crashed. The first is "NVRM: Xid (", as the
driver's lines begin; the second has "): 79, y", as they continue.
"""
TAKE_ALL_MEMORY = """
held = []
while True:
    held.append(bytearray(1 << 20))
"""


@dataclass(frozen=True)
class KernelLog:
    """The head's log. Other tests of the same machine leave entries too, so each test looks at the new ones."""

    pair: Pair
    before: Checked
    """The verdict when the test began."""

    @property
    def text(self) -> str:
        """What came since the test began."""
        return self.pair.head.run("dmesg").stdout

    def check(self) -> Checked:
        return self.pair.preflight()["kernel-log"]

    def new_events(self, verdict: Checked) -> Counter[tuple[str, str]]:
        """How many there are of each kind and device."""
        return count_events(verdict) - count_events(self.before)

    def worst(self, level: str) -> str:
        """The verdict's level where the new entries alone have this one."""
        return max(self.before.level, level, key=LEVELS.index)


def count_events(verdict: Checked) -> Counter[tuple[str, str]]:
    counts = Counter[tuple[str, str]]()
    for event in verdict.facts["events"]:
        counts[event["kind"], event["device"]] += event["count"]
    return counts


@pytest.fixture
def kernel_log(pair: Pair) -> KernelLog:
    pair.head.run("dmesg", "--clear")  # for dmesg alone: sparkd reads the whole log
    return KernelLog(pair, pair.preflight()["kernel-log"])


def test_other_programs_do_not_speak_for_the_driver(pair: Pair, kernel_log: KernelLog) -> None:
    """Neither root, which may write into the log, nor a program that crashes under a chosen name."""
    for line in (XID, f"<3>{XID}", f"<0>{XID}"):
        pair.head.run("sh", "-c", "cat > /dev/kmsg", input=line)
    pair.head.run("python3", "-c", CRASH, check=False)
    text = kernel_log.text
    assert text.count(XID) == 3
    assert "NVRM: Xid ([" in text
    assert "): 79, y[" in text
    verdict = kernel_log.check()
    assert verdict.level == kernel_log.worst("ok"), verdict.reason
    assert not kernel_log.new_events(verdict)


def test_only_a_kill_by_the_machines_lack_of_memory_is_reported_and_none_by_a_units_limit(
    pair: Pair, kernel_log: KernelLog
) -> None:
    as_unit = ("systemd-run", "--wait", "--collect", "--property=OOMScoreAdjust=1000")
    limits = ("--property=MemoryMax=64M", "--property=MemorySwapMax=0")
    pair.head.run(*as_unit, *limits, "python3", "-c", TAKE_ALL_MEMORY, check=False, timeout=240)
    assert "] Memory cgroup out of memory: Killed process" in kernel_log.text
    pair.head.run(*as_unit, "python3", "-c", TAKE_ALL_MEMORY, check=False, timeout=240)
    assert "] Out of memory: Killed process" in kernel_log.text
    verdict = kernel_log.check()
    assert verdict.level == kernel_log.worst("warn")
    assert "the node ran out of memory and the kernel killed python3, " in verdict.reason
    assert kernel_log.new_events(verdict) == {("out-of-memory", "python3"): 1}


def test_a_fatal_error_of_a_pcie_device_is_reported(pair: Pair, kernel_log: KernelLog) -> None:
    """By the root port, as real ones are, and then by the kernel for the device itself."""
    pair.head.monitor(f"pcie_aer_inject_error {SPARE} DLP")
    wait_for(lambda: "AER: Uncorrect" in kernel_log.text, 60, "the root port to say so", pause=1)
    wait_for(lambda: "PCIe Bus Error: severity=Uncorrect" in kernel_log.text, 60, "the device to be named", pause=1)
    events = kernel_log.new_events(kernel_log.check())
    fatal = {device: count for (kind, device), count in events.items() if kind == "pcie-fatal"}
    assert list(fatal.values()) == [1, 1], "one of the root port, one of the device"
