"""Memory that a user takes in no process, on a kernel with cgroup v2: it is not taken for the driver's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.json import decode
from tests.bed.qemu.machine import Machine
from tests.bed.qemu.pair import Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

PROGRAMS = Path(__file__).parents[1] / "programs"
UNIT, NOBODY = "taker.service", "65534"
MIB = 1 << 20
TAKEN_MIB = 60
"""Below the 64 MiB of pipes that a user without rights may fill (fs.pipe-user-pages-soft)."""
NOISE_BYTES = 12 * MIB


class Accounts(Struct):
    """What the program prints."""

    unaccounted_bytes: int
    unexplained_bytes: int
    charged_bytes: int
    unit: str
    unit_bytes: int
    held_bytes: int


@pytest.fixture(scope="module")
def machine(pair: Pair) -> Iterator[Machine]:
    for name in ("memory_taker.py", "memory_accounts.py"):
        pair.head.write(f"/srv/{name}", (PROGRAMS / name).read_bytes())
    yield pair.head


def read_accounts(machine: Machine) -> Accounts:
    done = machine.run("python3", "-IBS", "/srv/memory_accounts.py")
    return decode(done.stdout, type=Accounts)


def take(machine: Machine, way: str) -> tuple[Accounts, Accounts]:
    """Before, and while a user's unit has it."""
    before = read_accounts(machine)
    run = ("systemd-run", "--collect", f"--unit={UNIT}", f"--uid={NOBODY}", "--property=StandardOutput=journal")
    machine.run(*run, "python3", "-IBS", "/srv/memory_taker.py", way, str(TAKEN_MIB))
    try:
        ready = f"journalctl --quiet --unit={UNIT} --output=cat | grep -qx ready"
        machine.sh(f"timeout 200 sh -c 'until {ready}; do sleep 0.5; done'", timeout=240)
        return before, read_accounts(machine)
    finally:
        machine.run("systemctl", "stop", UNIT)


@pytest.mark.parametrize("way", ["sockets", "tcp", "pipes"])
def test_what_the_kernel_holds_for_a_process_is_charged_to_its_unit(machine: Machine, way: str) -> None:
    before, after = take(machine, way)
    taken_bytes = after.unaccounted_bytes - before.unaccounted_bytes
    assert taken_bytes > 0.5 * TAKEN_MIB * MIB, "/proc/meminfo has it in no line"
    assert after.charged_bytes - before.charged_bytes > 0.8 * taken_bytes
    assert after.unit == UNIT
    assert after.unit_bytes > 0.8 * taken_bytes
    assert after.unexplained_bytes - before.unexplained_bytes < NOISE_BYTES


def test_pages_that_were_given_to_a_pipe_are_held_by_processes(machine: Machine) -> None:
    before, after = take(machine, "given")
    assert after.held_bytes - before.held_bytes > 0.8 * TAKEN_MIB * MIB
    assert after.unexplained_bytes - before.unexplained_bytes < NOISE_BYTES
