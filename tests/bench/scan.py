"""The look for strays over a crowd of real processes, in a PID namespace of its own that ends them all."""

import json
import subprocess
import sys

from tests.bed import BedError
from tests.bed.space import REPOSITORY, environment

from .bench_node import PROGRAMS
from .figures import Figure, Limit, Spread
from .machine import load

SIZES = (100, 1_000, 10_000)
RUNS = 5
LIMIT = Limit(1.5, goal=0.8)
"""For the largest, with the ports of the plan free. Whose a held port is takes a look at every open file."""


def measure() -> tuple[Figure, ...]:
    before = load()  # ending a crowd is a crowd's work too
    namespaces = ("unshare", "--pid", "--net", "--fork", "--kill-child", "--mount-proc")
    command = [*namespaces, sys.executable, str(PROGRAMS / "crowd.py"), str(RUNS), *map(str, SIZES)]
    env = {**environment(), "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    costs = [json.loads(line) for line in done.stdout.splitlines()]
    if len(costs) < len(SIZES):
        raise BedError(f"the crowd of {SIZES[len(costs)]:,} was not looked at: {done.stderr.strip()}")
    return tuple(
        figure
        for size, cost in zip(SIZES, costs, strict=True)
        for figure in (
            _figure(size, "free", "", cost["free"], LIMIT if size == SIZES[-1] else None, before),
            _figure(size, "held", ", the port held by another", cost["held"], None, before),
        )
    )


def _figure(size: int, name: str, words: str, seconds: list[float], limit: Limit | None, before: float) -> Figure:
    values = Spread(tuple(round(one, 4) for one in seconds))
    return Figure(f"scan.{size}.{name}", f"stray scan, {size:,} processes{words}", "s", values, limit, load=before)
