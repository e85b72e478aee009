"""What is between nodes: simulated clusters on loopback, where each node runs what an agent runs for its peers.

Each figure is what peers add to an agent: what that takes by itself stands in `agent`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import TypeAdapter
from tests.bed import BedError
from tests.bed.space import REPOSITORY, environment

from .bench_node import PROGRAMS
from .figures import By, Figure, Limit, Spread
from .machine import load
from .programs.exchanged import Cost
from .programs.simulated import Result, State

SIZES = (2, 4, 8, 16, 32)
"""64 met on two cores where nothing else ran, and took all of both: what is measured then is the machine."""
LIMITED = (2, 8)
"""The fewest and the most nodes that serve one model. Larger clusters show where the ways of this one end."""
FINDINGS = (5, 20)
"""Of a usual report, and of a bad day's."""
RUNS = 4
CPU_PERCENT, PSS_MIB, NEWS_SECONDS = 0.4, 8.0, 0.5
"""With what an agent takes alone (0.1 % and 50 MiB), these stay within the agent's own limits."""
REQUESTS_SECONDS, ANSWERS_SECONDS = 0.003, 0.002
TIMEOUT_SECONDS = 900


def measure() -> tuple[Figure, ...]:
    figures: list[Figure] = []
    with tempfile.NamedTemporaryFile("w", suffix=".key") as key:
        key.write(os.urandom(32).hex())
        key.flush()
        for findings in FINDINGS:
            output = _run("exchanged", str(findings), str(RUNS), key.name)
            figures += of_cost(findings, TypeAdapter(Cost).validate_json(output), load())
    for size in SIZES:
        before = load()  # the load of the nodes themselves is no foreign load
        figures += of_result(TypeAdapter(Result).validate_json(_run("simulated", str(size))), before)
    return tuple(figures)


def _run(name: str, *arguments: str) -> str:
    """In a network namespace of its own: its addresses, ports and counts are nobody else's."""
    program = [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments]
    inside = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
    command = [*inside, 'ip link set lo up && exec "$@"', "sh", *program]
    path = os.pathsep.join((str(REPOSITORY / "src"), str(REPOSITORY)))
    env = {**environment(), "PYTHONPATH": path}
    done = subprocess.run(
        command, env=env, cwd=Path("/"), capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    if done.returncode:
        raise BedError(f"{name} {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def of_cost(findings: int, cost: Cost, load: float) -> tuple[Figure, ...]:
    what = f"an exchange, report of {findings} findings"
    requests, answers = Limit(REQUESTS_SECONDS), Limit(ANSWERS_SECONDS)
    return (
        Figure(
            f"exchange.{findings}.asks",  # words: keep
            f"{what}: CPU to request",
            "s",
            _rounded(cost.requests_seconds),
            requests,
            load=load,
        ),
        Figure(
            f"exchange.{findings}.answers", "  CPU to answer", "s", _rounded(cost.answers_seconds), answers, load=load
        ),
        Figure(f"exchange.{findings}.wire", "  on the wire", "B", Spread((cost.wire_bytes,)), load=load),
        Figure(f"exchange.{findings}.report", "  the report itself", "B", Spread((cost.report_bytes,)), load=load),
    )


def of_result(group: Result, load: float) -> tuple[Figure, ...]:
    limited = group.nodes in LIMITED

    def figure(name: str, what: str, unit: str, runs: tuple[float, ...], limit: Limit | None = None) -> Figure:
        return Figure(f"cluster.{group.nodes}.{name}", what, unit, Spread(runs), limit if limited else None, load=load)

    def of_state(name: str, state: State, cpu: Limit | None) -> tuple[Figure, ...]:
        each = round(state.exchanges_per_second / group.nodes, 2)
        return (
            figure(f"cpu-{name}", f"  CPU of a node, {name}", "% of a core", state.cpu_percent, cpu),
            figure(f"exchanges-{name}", f"  reports that it reads, {name}", "/s", (each,)),
        )

    news = Limit(NEWS_SECONDS, by=By.WORST)
    memory = figure("pss", f"{group.nodes} nodes: memory added to each (PSS)", "MiB", group.grown_mib, Limit(PSS_MIB))
    serving = of_state("serving", group.serving, Limit(CPU_PERCENT))
    phase = figure("news", "  a change of phase, until all have it", "s", group.serving.latency_seconds, news)
    if group.loading is None:
        return (memory, *serving, phase)
    progress = figure("progress", "  progress, until all have it", "s", group.loading.latency_seconds)
    return (memory, *serving, phase, *of_state("loading", group.loading, None), progress)


def _rounded(seconds: tuple[float, ...]) -> Spread:
    return Spread(tuple(round(one, 6) for one in seconds))
