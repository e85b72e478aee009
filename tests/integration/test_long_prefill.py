"""A prefill that takes longer than supervise.stall_seconds, in an agent's run: which is ended, when, and as what.

The API answers all along. The engine's core computes, or sleeps while the GPU computes, as its driver says.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.integration.agent_world import API_PORT, PROGRAMS, World, configuration, world
from tests.integration.side_by_side import Outcomes, outcomes
from tests.integration.test_stop_while_hung import RECIPE, rank_pid
from tests.unit.nodes import until

from sparkd.base.lib.errors import ExitCode

AGENT_WITH_GPU = (sys.executable, "-I", str(PROGRAMS / "agent_with_gpu.py"))
REQUEST = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
body = json.dumps({"model": "tiny", "prompt": sys.argv[2], "max_tokens": 1})
connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
raise SystemExit(connection.getresponse().status != 200)
"""
GROUP = """
mount -t tmpfs -o mode=755 groups /sys/fs/cgroup
mkdir /sys/fs/cgroup/unified
mount -t cgroup2 none /sys/fs/cgroup/unified
mkdir -p "/sys/fs/cgroup/unified/$1"
for pid in $(cat "/proc/$2/task/$2/children") $2; do echo $pid >"/sys/fs/cgroup/unified/$1/cgroup.procs"; done
"""
IDLE, WAITS, COMPUTES = "0 5", "100 20", "100 45"
"""A GPU that waits for another rank is as busy as one that computes, and draws less."""
SLACK_SECONDS = 15.0
"""Probes are seconds apart, and the end waits for the rank's stacks and its stop."""


class Seen(NamedTuple):
    answered: bool
    code: int
    """Of the agent: ended by the test once the request was answered."""
    seconds: float
    """From the request to its answer, or to the agent's end."""
    reason: str


@pytest.fixture(scope="module")
def prefills(request: pytest.FixtureRequest) -> Iterator[Outcomes[Seen]]:
    with outcomes(request, serve, at_once=8) as results:
        yield results


@contextmanager
def grouped(node: World) -> Iterator[None]:
    """Its rank in a control group as docker's, by which its processes are found."""
    above, name = f"sparkd-test-{node.pid}", node.containers()[0]
    moved = node.run("sh", "-ec", GROUP, "sh", f"{above}/{name}", str(rank_pid(node)))
    assert moved.wait(10) == 0
    try:
        yield
    finally:
        mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
        folder = next(Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2") / above
        node.control(signal=9)
        until(lambda: not (folder / name / "cgroup.procs").read_text(), 10)
        (folder / name).rmdir()
        folder.rmdir()


def serve(prompt: str, gpu: str, stall_seconds: int, after: float, reason: str) -> Seen:
    with world() as node:
        node.tree.file("/etc/sparkd/recipes/gpu.yaml", RECIPE)
        limits = f"supervise.stall_seconds = {stall_seconds}"
        node.configure(configuration(limits, 'readiness.warm = "never"', recipe="gpu"))
        node.tree.file("/run/gpu", gpu)
        node.control(engine=[str(API_PORT), "serving", "prefill"])
        node.start_agent(*AGENT_WITH_GPU)
        node.await_phase("serving")
        assert node.agent is not None
        with grouped(node):
            began = time.monotonic()
            client = node.run(sys.executable, "-I", "-c", REQUEST, str(API_PORT), prompt, stderr=subprocess.DEVNULL)
            while client.poll() is None and node.agent.poll() is None:
                time.sleep(0.1)
            seconds, answered = time.monotonic() - began, client.poll() == 0
            if answered:
                node.terminate()
            code = node.exit_code(60)
        end = next((line for line in node.lines if "agent.run.failed" in line), "")
        return Seen(answered, code, round(seconds, 1), end)


@pytest.mark.parametrize(
    ("prompt", "gpu", "stall_seconds", "after", "reason"),
    [
        pytest.param("pieces 22", IDLE, 10, 22, "", id="in pieces"),
        pytest.param("burn 90", IDLE, 10, 10, "no token came for 1", id="one step, computed by the CPU"),
        pytest.param("sleep 22", COMPUTES, 10, 22, "", id="one step, computed by the GPU"),
        pytest.param("sleep 38", COMPUTES, 14, 38, "", id="as long as a proof takes", marks=pytest.mark.whole),
        pytest.param("sleep 90", COMPUTES, 12, 36, "no token came for 3", id="without end", marks=pytest.mark.whole),
        pytest.param("sleep 90", WAITS, 40, 40, "no token came for 4", id="a GPU that waits", marks=pytest.mark.whole),
        pytest.param("sleep 90", IDLE, 60, 30, "no rank used a CPU or a GPU", id="nobody", marks=pytest.mark.whole),
    ],
)
def test_what_a_prefill_is_taken_for(
    prompt: str,
    gpu: str,
    stall_seconds: int,
    after: float,
    reason: str,
    prefills: Outcomes[Seen],
    request: pytest.FixtureRequest,
) -> None:
    """`after`: seconds until it is answered, or until the engine is given up for that `reason`."""
    outcome = prefills.of(request)
    assert (outcome.answered, outcome.code) == ((False, ExitCode.STALLED) if reason else (True, 0))
    assert reason in outcome.reason
    assert ("it hangs" in outcome.reason) is ("no rank" in reason)
    assert after <= outcome.seconds <= after + SLACK_SECONDS
