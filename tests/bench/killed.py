"""From a killed rank to the unit's failure: reported in the journal, and known to systemd."""

import json
import signal
import time
from collections.abc import Callable

from tests.bed import BedError
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import HEAD, SparkdNode

from .bench_node import RANK, BenchNode
from .figures import Figure, Limit, Spread
from .machine import load

RUNS = 5
REPORTED, LEFT = Limit(0.35, goal=0.2), Limit(1.0)
"""Of the kernel's own time to end all processes of the container (0.2 to 0.4 s on two cores), docker's and sparkd's."""


def container_init(spark: SparkdNode) -> int:
    return int(spark.node.run("docker", "inspect", "--format", "{{.State.Pid}}", RANK).stdout)


def engine_core(spark: SparkdNode) -> int:
    return spark.pid(r"^VLLM::EngineCore")


def measure(bench: BenchNode) -> tuple[Figure, ...]:
    return (
        *_figures(bench, "container", "killed container", container_init, REPORTED, LEFT),
        *_figures(bench, "engine-core", "killed EngineCore", engine_core),
    )


def _figures(
    bench: BenchNode,
    name: str,
    what: str,
    victim: Callable[[SparkdNode], int],
    reported_limit: Limit | None = None,
    left_limit: Limit | None = None,
) -> tuple[Figure, ...]:
    reported, left = [], []
    for _ in range(RUNS):
        one_reported, one_left = _kill(bench, victim)
        reported.append(round(one_reported, 3))
        left.append(round(one_left, 3))
    return (
        Figure(
            f"killed.{name}.told",  # words: keep
            f"{what}: reported in the journal",
            "s",
            Spread(tuple(reported)),
            reported_limit,
            load=load(),
        ),
        Figure(
            f"killed.{name}.left", f"{what}: the unit is not active", "s", Spread(tuple(left)), left_limit, load=load()
        ),
    )


def _kill(bench: BenchNode, victim: Callable[[SparkdNode], int]) -> tuple[float, float]:
    """Seconds until the journal has `agent.run.failed`, and until the unit leaves `active`. It comes back by itself."""
    bench.serve()
    spark = bench.spark
    cursor, old, pid = spark.cursor(), spark.main_pid(), victim(spark)
    killed_at = time.monotonic()
    spark.node.kill(pid, signal.SIGKILL)
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    reported, left = _reported_at(spark, cursor) - killed_at, bench.stamp("ActiveExit") - killed_at
    spark.await_serving()
    return reported, left


def _reported_at(spark: SparkdNode, cursor: str) -> float:
    command = ("journalctl", "-u", HEAD, f"--after-cursor={cursor}", "-o", "json", "--output-fields=MESSAGE")
    for line in spark.node.run(*command).stdout.splitlines():
        if "agent.run.failed" in line:
            return int(json.loads(line)["__MONOTONIC_TIMESTAMP"]) / 1e6
    raise BedError("the journal has no agent.run.failed")
