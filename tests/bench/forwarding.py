"""Engine lines a second: a real container's log through docker and sparkd's own code to a pipe that is read."""

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bed import BedError
from tests.bed.images import BUSYBOX

from .bench_node import AT, INSTALLED, BenchNode
from .figures import Beside, By, Figure, Limit, Spread
from .lines import Tally, as_fast_as_it_can, at_pace
from .machine import load

PACE, PACED_SECONDS = 21_000, 12
"""A little more and longer than promised: the writer's first and last moments are slower."""
SUSTAINED, TOP = Limit(20_000, at_least=True), Limit(60_000, at_least=True, goal=100_000)
TOP_LINES = 200_000
"""30 MB of docker's log. Of more, written faster than it is read, docker skips a file at its second rotation: seen
on 26.1, and the same with `docker logs --follow`."""
RUNS = 3
SILENCE_SECONDS = 60.0
CHUNK_BYTES = 1 << 20
WRITER, UNIT = "writer", "bench-forwarder"
LOG = ("--log-driver", "local", "--log-opt", "max-size=20m", "--log-opt", "max-file=5")
"""As sparkd's own containers have it."""
READER_IS_THERE_SECONDS = 2


def measure(bench: BenchNode) -> tuple[Figure, ...]:
    bench.spark.stop()
    paced = [_through_sparkd(bench, at_pace(PACE * PACED_SECONDS, PACE)) for _ in range(RUNS)]
    top, docker = [], []
    for _ in range(RUNS):
        top.append(_through_sparkd(bench, as_fast_as_it_can(TOP_LINES)))
        docker.append(_through_docker_logs(bench, as_fast_as_it_can(TOP_LINES)))
    return (
        _rate("sustained", f"log lines forwarded, {PACED_SECONDS} s", paced, SUSTAINED),
        _wrong("sustained", "  of them lost or out of order", paced, PACE * PACED_SECONDS),
        _rate("top", "log lines forwarded, unpaced", top, TOP, Beside("docker logs", _rates(docker))),
        _wrong("top", "  of them lost or out of order", top, TOP_LINES),
        *_by_journald(bench),
    )


def _rates(tallies: list[Tally]) -> Spread:
    return Spread(tuple(round(one.lines_per_second) for one in tallies))


def _rate(name: str, what: str, tallies: list[Tally], limit: Limit | None, beside: Beside | None = None) -> Figure:
    return Figure(f"forward.{name}", what, "lines/s", _rates(tallies), limit, beside, load())


def _wrong(name: str, what: str, tallies: list[Tally], written: int) -> Figure:
    wrong = Spread(tuple(written - one.received + one.out_of_order for one in tallies))
    return Figure(f"forward.{name}.wrong", what, "lines", wrong, Limit(0, by=By.WORST), load=load())


@contextmanager
def _written(bench: BenchNode, program: str) -> Iterator[str]:
    """A container that begins to write when its reader has had time to come."""
    node = bench.spark.node
    script = f"sleep {READER_IS_THERE_SECONDS}; exec awk '{program}'"
    node.run("docker", "run", "--detach", "--name", WRITER, *LOG, BUSYBOX, "sh", "-c", script)
    try:
        yield WRITER
    finally:
        node.run("docker", "rm", "--force", WRITER)


def _through_sparkd(bench: BenchNode, program: str) -> Tally:
    with _written(bench, program) as container, bench.program("forwarder", container) as process:
        tally = _drained(process)
        errors = process.communicate()[1].decode(errors="replace")
        if process.returncode:
            raise BedError(f"the forwarder: {errors.strip()}")
        return tally


def _through_docker_logs(bench: BenchNode, program: str) -> Tally:
    with _written(bench, program) as container:
        command = bench.spark.node.entered("docker", "logs", "--follow", container)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            return _drained(process)


def _drained(process: subprocess.Popen[bytes]) -> Tally:
    tally = Tally()
    assert process.stdout is not None
    fd = process.stdout.fileno()
    while select.select([fd], [], [], SILENCE_SECONDS)[0]:
        data = os.read(fd, CHUNK_BYTES)
        if not data:
            return tally
        tally.feed(data, time.monotonic())
    raise BedError(f"no line for {SILENCE_SECONDS:g} s, after {tally.received:,}")


def _by_journald(bench: BenchNode) -> tuple[Figure, ...]:
    """For information: what journald takes from the same code when a unit runs it, with the limit that sparkd's has."""
    node = bench.spark.node
    limit = f"LogRateLimitIntervalSec={bench.spark.show('LogRateLimitIntervalUSec')}"
    with _written(bench, as_fast_as_it_can(TOP_LINES)) as container:
        run = ("systemd-run", "--wait", "--unit", UNIT, "--property", limit, "--setenv", INSTALLED)
        node.run(*run, "/usr/bin/python3", AT / "forwarder.py", container, timeout=300)
    node.run("journalctl", "--sync")
    text = node.run("journalctl", "-u", UNIT, "-o", "short-monotonic", timeout=300).stdout
    stamps = [float(stamp) for stamp in re.findall(r"^\[ *([\d.]+)\].* line \d{8} ", text, re.MULTILINE)]
    if len(stamps) < 2:
        raise BedError("the journal has none of the lines")
    rate = Spread((round(len(stamps) / (stamps[-1] - stamps[0])),))
    lost = Spread((TOP_LINES - len(stamps),))
    return (
        Figure("forward.journald", "log lines into journald, unpaced", "lines/s", rate, load=load()),
        Figure("forward.journald.lost", "  of them lost", "lines", lost, load=load()),
    )
