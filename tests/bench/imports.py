"""What the agent imports costs each start: CPU time, warm, compiled when the package was installed."""

import json

from tests.bed import BedError

from .bench_node import BenchNode
from .figures import Figure, Limit, Spread
from .machine import load

RUNS = 11
CPU = Limit(0.65, goal=0.5)


def measure(bench: BenchNode) -> tuple[Figure, ...]:
    bench.spark.stop()
    with bench.program("imported", str(RUNS)) as process:
        out, errors = process.communicate()
    if process.returncode:
        raise BedError(f"the agent's modules could not be imported: {errors.decode(errors='replace').strip()}")
    seconds = [json.loads(line)["seconds"] for line in out.splitlines()][1:]
    return (Figure("agent.imports", "imports of the agent, CPU", "s", Spread(tuple(seconds)), CPU, load=load()),)
