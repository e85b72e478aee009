"""The log of a kernel of one's own: what it says itself, and what others put into it."""

import pytest
from tests.bed.processes import wait_for
from tests.bed.qemu.machine import SPARE
from tests.bed.qemu.pair import Checked, Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

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
"""Its own name, and that of a file of code, around what the kernel says of its crash, read like the driver's words."""
EAT = """
held = []
while True:
    held.append(bytearray(1 << 20))
"""


def kernel_log_check(pair: Pair) -> Checked:
    return pair.preflight()["kernel-log"]


def log(pair: Pair) -> str:
    return pair.head.run("dmesg").stdout


def test_other_programs_do_not_speak_for_the_driver(pair: Pair) -> None:
    """Neither root, which may write into the log, nor a program that crashes under a chosen name."""
    for line in (XID, f"<3>{XID}", f"<0>{XID}"):
        pair.head.run("sh", "-c", "cat > /dev/kmsg", input=line)
    pair.head.run("python3", "-c", CRASH, check=False)
    assert log(pair).count(XID) == 3
    assert "NVRM: Xid ([" in log(pair)
    assert "): 79, y[" in log(pair)
    found = kernel_log_check(pair)
    assert (found.level, found.facts["events"]) == ("ok", []), found.reason


def test_a_kill_by_a_memory_limit_is_the_groups_own_matter_and_one_of_the_machine_is_reported(pair: Pair) -> None:
    run = ("systemd-run", "--wait", "--collect", "--property=OOMScoreAdjust=1000")
    limits = ("--property=MemoryMax=64M", "--property=MemorySwapMax=0")
    pair.head.run(*run, *limits, "python3", "-c", EAT, check=False, timeout=240)
    assert "] Memory cgroup out of memory: Killed process" in log(pair)
    pair.head.run(*run, "python3", "-c", EAT, check=False, timeout=240)
    assert "] Out of memory: Killed process" in log(pair)
    found = kernel_log_check(pair)
    assert found.level == "warn"
    assert found.reason.startswith("the node ran out of memory and the kernel killed python3, ")
    assert [(one["kind"], one["count"]) for one in found.facts["events"]] == [("out-of-memory", 1)]


def test_a_fatal_error_of_a_pcie_device_is_reported(pair: Pair) -> None:
    """By the root port, as real ones are, and then by the kernel for the device itself."""
    pair.head.monitor(f"pcie_aer_inject_error {SPARE} DLP")
    wait_for(lambda: "AER: Uncorrect" in log(pair), 60, "the root port to say so", pause=1)
    wait_for(lambda: "PCIe Bus Error: severity=Uncorrect" in log(pair), 60, "the device to be named", pause=1)
    fatal = [one for one in kernel_log_check(pair).facts["events"] if one["kind"] == "pcie-fatal"]
    assert [one["count"] for one in fatal] == [1, 1]
    assert len({one["device"] for one in fatal}) == 2
