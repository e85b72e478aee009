"""How a boot ended, as the next one's agent names it: real resets, panics and freezes of a kernel of one's own."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.bed.command import BedError
from tests.bed.processes import wait_for
from tests.bed.qemu import disk
from tests.bed.qemu.machine import Machine
from tests.bed.qemu.pair import LAUNCH, UNIT, Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

AGAIN_SECONDS = 600.0
"""A freeze until the watchdog's end, 60 s, and a boot."""
AGENT_SECONDS = 240.0
WATCHDOG = ("-device", "i6300esb", "-action", "watchdog=reset")
ONE_WATCHDOG = "module_blacklist=iTCO_wdt"
"""The chipset's would be the first, or not: systemd serves /dev/watchdog0."""
DUMPS_BYTES = 1 << 20
FREEZE = """
import os
from glob import glob
open("/proc/sys/kernel/sched_rt_runtime_us", "w").write("-1")
for share in glob("/sys/kernel/debug/sched/fair_server/cpu*/runtime"):
    open(share, "w").write("0")
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
while True:
    pass
"""
"""A program that leaves no time for another one, nor for systemd: what a machine that stands still looks like."""
EAT = """
held = []
while True:
    held.append(bytearray(1 << 20))
"""


def dumps(folder: Path) -> tuple[str, ...]:
    """Memory that keeps the kernel's last words without power, by ACPI's ERST; a DGX Spark has UEFI's variables."""
    backend = f"memory-backend-file,id=dumps,mem-path={folder}/dumps,size={DUMPS_BYTES},share=on"
    return ("-object", backend, "-device", "acpi-erst,memdev=dumps")


@pytest.fixture(scope="module")
def machine(disks: Path) -> Iterator[Machine]:
    """Alone, with a watchdog that `sparkd tune apply` has set up. It boots again by itself."""
    options = (*WATCHDOG, *dumps(disks))
    made = Machine("spark3", disk.base(), disks, "spark4", options, ONE_WATCHDOG, ends_at_reset=False)
    try:
        made.boot()
        Pair(made, made).configure()
        made.write("/root/freeze.py", FREEZE)
        made.write("/root/eat.py", EAT)
        applied = made.run("sparkd", "tune", "apply", "--watchdog", timeout=240).stdout
        assert "the watchdog (i6300ESB timer) resets a frozen machine" in applied
        assert made.read("/sys/class/watchdog/watchdog0/state") == "active\n"
        made.run("mkdir", "-p", "/var/lib/sparkd")
        yield made
    finally:
        made.powercut()


def boot_id(machine: Machine) -> str:
    return machine.read("/proc/sys/kernel/random/boot_id").strip()


def end_by(machine: Machine, act: Callable[[], object]) -> float:
    """Seconds until it answers in its next boot, without help."""
    machine.sh("journalctl --sync && sync")  # so that the journal before `act` survives
    before, began = boot_id(machine), time.monotonic()
    act()

    def is_booted_again() -> bool:
        try:
            machine.wait_up(AGAIN_SECONDS / 4)
            return boot_id(machine) != before
        except BedError:
            return False

    wait_for(is_booted_again, AGAIN_SECONDS, "the machine to boot again", pause=1)
    return time.monotonic() - began


def run_later(machine: Machine, line: str) -> None:
    """Begin it once the guest's agent has answered."""
    machine.sh(f"(sleep 2; {line}) </dev/null >/dev/null 2>&1 &")


def cut_power(machine: Machine) -> None:
    machine.powercut()
    machine.boot()


def read_machine_end(machine: Machine) -> tuple[str, str]:
    """Kind and evidence, as this boot's first agent notes them. It may wait for its address, and is stopped then."""
    now = boot_id(machine)
    machine.run("systemctl", "start", "--no-block", UNIT)

    def find_end() -> tuple[str, str] | None:
        text = machine.run("cat", "/var/lib/sparkd/launch-history.json", check=False).stdout
        end = json.loads(text or "{}").get("machine_end") or {}
        return (end["kind"], end["evidence"]) if end.get("boot_id") == now else None

    machine_end = wait_for(find_end, AGENT_SECONDS, "the agent to note how the last boot ended", pause=1)
    assert machine_end is not None
    machine.run("systemctl", "stop", UNIT)
    return machine_end


CASES: dict[str, tuple[Callable[[Machine], object], str, str]] = {
    "reboot": (lambda machine: run_later(machine, "systemctl reboot"), "ordered", ""),
    "power-cut": (cut_power, "power-lost", "the journal ends at "),
    "reset": (lambda machine: machine.monitor("system_reset"), "power-lost", "the journal ends at "),
    "memory": (
        lambda machine: run_later(machine, "sysctl vm.panic_on_oom=1; python3 /root/eat.py"),
        "memory",
        "Kernel panic - not syncing: Out of memory",
    ),
    "frozen": (
        lambda machine: run_later(machine, "python3 /root/freeze.py"),
        "watchdog",
        "the hardware watchdog reports",
    ),
    "systemd-frozen": (lambda machine: run_later(machine, "kill -SEGV 1"), "watchdog", "the hardware watchdog reports"),
}
"""What ends the boot; its kind, and how the evidence begins. A frozen machine comes back by itself."""


@pytest.mark.parametrize("case", CASES)
def test_the_end_of_a_boot_is_named(machine: Machine, case: str) -> None:
    act, expected, begins = CASES[case]
    end_by(machine, lambda: act(machine))
    kind, evidence = read_machine_end(machine)
    assert (kind, evidence[: len(begins)]) == (expected, begins)


def test_a_load_that_a_panic_ended_is_reported_with_it(machine: Machine) -> None:
    machine.run("python3", "-IB", "-c", LAUNCH)
    end_by(machine, lambda: run_later(machine, "echo c > /proc/sysrq-trigger"))
    kind, evidence = read_machine_end(machine)
    assert (kind, evidence.startswith("Kernel panic - not syncing: sysrq triggered crash")) == ("kernel", True)
    pair = Pair(machine, machine)
    pair.join(machine)
    last = pair.preflight()["last-boot"]
    assert last.level == "warn"
    assert f"while the engine was loading, by what is left of it kernel: {evidence}" in last.reason
