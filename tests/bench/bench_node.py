"""A node with sparkd on it, and the operations of the measurements. Its CLOCK_MONOTONIC is this machine's."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed import BedError
from tests.bed.command import Argument
from tests.bed.processes import Identity, descendants
from tests.bed.sparkd_node import SERVING_SECONDS, SparkdNode

from . import containers
from .containers import Inspected

PROGRAMS = Path(__file__).parent / "programs"
AT = Path("/root/bench")
PORT = 8000
RANK = "sparkd-rank0"
INSTALLED = "PYTHONPATH=/usr/lib/sparkd/app:/usr/lib/sparkd/vendor"
"""What the package's own launcher lets Python see."""


@dataclass(frozen=True)
class Timed:
    """One run of a command."""

    began: float
    """On CLOCK_MONOTONIC."""
    seconds: float


@dataclass(frozen=True)
class BenchNode:
    spark: SparkdNode

    @classmethod
    def furnish(cls, spark: SparkdNode, package: Path) -> BenchNode:
        """Install sparkd, configure it for the tiny model, and bring the programs that measure."""
        spark.install(package)
        spark.configure()
        spark.node.put(PROGRAMS, AT)
        return cls(spark)

    @contextmanager
    def program(self, name: str, *argv: Argument) -> Iterator[subprocess.Popen[bytes]]:
        """A program of the bench at work in the node. What of it still runs at the end is killed."""
        command = self.spark.node.entered("env", INSTALLED, "/usr/bin/python3", AT / f"{name}.py", *argv)
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
            try:
                yield process
            finally:
                for pid in list(descendants(process.pid)):
                    Identity.of(pid).send(signal.SIGKILL)
                process.kill()

    @contextmanager
    def prober(self, what: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
        """The prober, once it is at work."""
        with self.program("prober", what, str(PORT), str(seconds)) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield process

    def timed(self, runs: int, *command: str) -> tuple[Timed, ...]:
        """Run it so often, timed by a process in the node. Raises BedError where it fails."""
        done = self.spark.node.run("/usr/bin/python3", AT / "timed.py", str(runs), *command, timeout=SERVING_SECONDS)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for one in found:
            if one["code"]:
                raise BedError(f"{' '.join(command)}: exit {one['code']}: {one['output'].strip()}")
        return tuple(Timed(one["began"], one["seconds"]) for one in found)

    def stamp(self, name: str) -> float:
        """When the unit last came to it (`ActiveEnter`, `ActiveExit`, ...), on CLOCK_MONOTONIC."""
        return int(self.spark.show(f"{name}TimestampMonotonic")) / 1e6

    def inspected(self, container: str, like: str = "bare") -> Inspected:
        return containers.parse(self.spark.node.run("docker", "inspect", container).stdout, like)

    def serve(self) -> None:
        """Serving, with a ledger that has forgotten the faults of this bench."""
        self.spark.forget_failures()
        if not self.spark.serves():
            self.spark.stop()
            self.spark.start()


def answer(prober: subprocess.Popen[bytes], seconds: float = SERVING_SECONDS) -> dict[str, float]:
    """What the prober found. Raises BedError when it found nothing."""
    out, errors = prober.communicate(timeout=seconds)
    found: dict[str, float] = json.loads(out or b"{}")
    if not found:
        raise BedError(f"the prober got no completion: {errors.decode(errors='replace').strip()}")
    return found


def on_monotonic(wall_seconds: float) -> float:
    """A stamp of the wall clock, on CLOCK_MONOTONIC."""
    return wall_seconds - (time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_MONOTONIC))
