"""A stop while all that may hang does: the GPU's driver, /proc of the rank, docker's log, and a full pipe as stdout."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import NamedTuple

import psutil
import pytest
from tests.integration.agent_world import API_PORT, START_SECONDS, World, configuration, world
from tests.integration.hung_library import build
from tests.integration.side_by_side import Outcomes, outcomes

SLACK_SECONDS = 1.0
FED_SECONDS = 10.0
"""The longest time without WATCHDOG=1, a third of the unit's."""
HANGS_SECONDS = 4.0
"""Before the stop: what looks at intervals has begun to hang."""
END_SECONDS = 120.0
LIBRARIES = "/run/libraries"
SEGMENT = "/dev/shm/psm_0123abcd"
"""With an engine's kind of name: who has it mapped is looked up in /proc of the rank."""
GUARDED = ("memory_guard.watch.started", "memory_guard.lock.failed")
RECIPE = """\
schema: 1
name: gpu
description: The tiny model, with the GPU watched
extends: tiny-cpu
container:
  gpus: all
"""


HUNG = {
    "driver": {"driver"},
    "proc": {"proc"},
    "log": {"log"},
    "stdout": {"stdout"},
    "all": {"driver", "proc", "log", "stdout"},
}
ROWS = [
    ("driver", "polite", 6),
    ("driver", "deaf", 6),
    ("log", "polite", 6),
    ("log", "deaf", 6),
    ("stdout", "polite", 6),
    ("all", "polite", 30),
    ("proc", "polite", 6),
    ("proc", "deaf", 6),
    ("stdout", "deaf", 6),
    ("all", "polite", 6),
    ("all", "deaf", 6),
]
"""What hangs, how the engine takes SIGTERM, and engine.stop_grace_seconds (30 is its default)."""


class Stop(NamedTuple):
    code: int
    took_seconds: float
    longest_unfed_seconds: float
    containers: list[str]


@pytest.fixture(scope="module")
def stops(request: pytest.FixtureRequest) -> Iterator[Outcomes[Stop]]:
    with outcomes(request, stop_while_hung, at_once=8) as results:
        yield results


def stop_while_hung(hung: str, engine: str, grace_seconds: int, phase: str) -> Stop:
    with ExitStack() as stack:
        node = stack.enter_context(world())
        stdout = stack.enter_context(pipe(full="stdout" in HUNG[hung]))
        node.tree.file("/etc/sparkd/recipes/gpu.yaml", RECIPE)
        node.configure(configuration(f"engine.stop_grace_seconds = {grace_seconds}", recipe="gpu"))
        node.tree.folder(LIBRARIES)
        if "driver" in HUNG[hung]:
            library = node.root / LIBRARIES.lstrip("/") / "libnvidia-ml.so.1"
            library.write_bytes(build("nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"))
        node.control(engine=[str(API_PORT), phase, engine], hang={"logs": END_SECONDS if "log" in HUNG[hung] else 0})
        node.start_agent(stdout=stdout, LD_LIBRARY_PATH=LIBRARIES)
        node.await_phase(phase)
        if "proc" in HUNG[hung]:
            stack.enter_context(node.hung(f"/proc/{rank_pid(node)}"))
        node.tree.segment(SEGMENT.rpartition("/")[2], age_seconds=0)
        stack.enter_context(node.hurried())
        time.sleep(HANGS_SECONDS)
        assert node.report["phase"] == phase
        began = time.monotonic()
        node.terminate()
        code = node.exit_code(END_SECONDS)
        took_seconds = time.monotonic() - began
        fed = pairwise(node.systemd.times_of("WATCHDOG=1"))
        longest = max((later - earlier for earlier, later in fed), default=0.0)  # a short run is fed once
        return Stop(code, round(took_seconds, 1), round(longest, 1), node.containers())


@contextmanager
def pipe(*, full: bool) -> Iterator[int]:
    """The end to write to, of a pipe that nobody reads."""
    reading, writing = os.pipe()
    try:
        if full:
            os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)))
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def rank_pid(node: World) -> int:
    """In the node's own namespace."""
    container = node.docker("GET", f"/containers/{node.containers()[0]}/json")
    assert isinstance(container, dict)
    return int(container["State"]["Pid"])


@pytest.mark.parametrize("phase", ["loading", "serving"])
@pytest.mark.parametrize(("hung", "engine", "grace_seconds"), ROWS)
def test_the_run_ends_within_the_grace_period(
    hung: str, engine: str, grace_seconds: int, phase: str, stops: Outcomes[Stop], request: pytest.FixtureRequest
) -> None:
    stop = stops.of(request)
    assert (stop.code, stop.containers) == (0, [])
    assert stop.longest_unfed_seconds < FED_SECONDS
    if stop.took_seconds > grace_seconds + SLACK_SECONDS:
        stop = stops.alone(request)
    assert stop.took_seconds <= grace_seconds + SLACK_SECONDS


def test_a_guard_that_is_started_again_meanwhile_watches_and_holds_up_no_stop() -> None:
    """The agent can't end either while its guard hangs in the same lookup, which no signal to the agent ends."""
    with world() as node:
        node.configure(configuration(f"engine.stop_grace_seconds = {6}"))
        node.start_agent()
        node.await_phase("serving")
        with node.hung(f"/proc/{rank_pid(node)}"):
            (killer,) = psutil.Process(node.agent_pid).children()
            killer.kill()
            node.until(lambda: sum(" ".join(node.lines).count(text) for text in GUARDED) == 2, "another guard")
            node.terminate()
            assert node.exit_code(START_SECONDS) == 0
