"""python -m tests.arm64: the arm64 package from installation to purge, on an emulated machine. See `make arm64`."""

import sys
import time
from pathlib import Path

from tests.bed import cache
from tests.bed.command import BedError
from tests.bed.demo import newest_package

from . import disk
from .machine import Arm64Machine
from .trial import Trial


def main() -> int:
    package, base = newest_package(Path("dist"), "arm64"), disk.base()
    with cache.lock("arm64-machine"), cache.scratch("arm64-machine") as folder:
        disk.make(base, package, folder)
        machine = Arm64Machine("spark1", base, folder, "")
        trial = Trial(machine)
        print("| step | seconds | in the machine | what was seen |\n|---|---|---|---|", flush=True)
        try:
            for act in trial.steps():
                began, before = time.monotonic(), trial.uptime()
                seen = ", ".join(act().splitlines())
                took, inside = time.monotonic() - began, trial.uptime() - before
                print(f"| {act.__doc__} | {took:.0f} | {inside:.1f} | {seen} |", flush=True)
        except BedError as error:
            print(f"FAILED: {act.__doc__} {error}\n{trial.tail()}", file=sys.stderr)
            return 1
        finally:
            machine.powercut()
    return 0


if __name__ == "__main__":
    sys.exit(main())
