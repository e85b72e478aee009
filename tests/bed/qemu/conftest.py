"""Fixtures of tests that need a kernel of their own. They take minutes, so they are for `make bed` alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed import cache
from tests.bed.qemu import disk
from tests.bed.qemu.machine import Machine
from tests.bed.qemu.pair import Pair


@pytest.fixture(scope="session")
def disks(package: Path) -> Iterator[Path]:
    """The folder of the disk that all machines start from, and of what is each one's own."""
    with cache.lock("machines"), cache.scratch("machines") as folder:
        disk.install(disk.base(), package, folder)
        yield folder


@pytest.fixture(scope="session")
def pair(disks: Path) -> Iterator[Pair]:
    """Booted, on a bond, configured; no agent runs."""
    base = disk.base()
    made = Pair(Machine("spark1", base, disks, "spark2"), Machine("spark2", base, disks, "spark1"))
    try:
        for machine in made.both:
            machine.power_on()
        for machine in made.both:
            machine.wait_up()
            made.join(machine)
        made.configure()
        yield made
    finally:
        for machine in made.both:
            machine.powercut()
