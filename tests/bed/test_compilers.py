"""Compilers on a cold cache beside a rank's weights: they take a node's memory, and bounded or held back they do not.

The node is a GB10 in small: UNIT_BYTES of memory stand for each GiB, also in sparkd's sums. Real are the node, its
container, the processes, their memory, and who ends them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import SparkdNode

UNIT_BYTES = 32 << 20
FLOOR_MIB = 16
"""0.5 of the unit, as 512 MiB of a GiB."""
GB10 = (121.6, 69.4)
"""GiB in all, and of DeepSeek-V4-Flash on each of two nodes."""
MODEL = "/srv/models/compiling"
PROGRAMS = Path(__file__).with_name("programs")
STAND_IN = (PROGRAMS / "compiling.py", REPOSITORY / "tests/integration/programs/endpoint_alike.py")
APP = "/usr/lib/sparkd/app/sparkd"
RECIPE = """\
schema: 1
name: compiling
description: A stand-in that compiles
source: tests
extends: tiny-cpu
model:
  path: compiling
image:
  entrypoint: [python3, -IS, /models/compiling/compiling.py]
args:
  enforce-eager: null
  max-model-len: 4096
  max-num-seqs: 4
  max-num-batched-tokens: 512
  gpu-memory-utilization: 0.8
container:
  gpus: all
memory_bytes: null
env:
  UNIT_BYTES: "{unit}"
  WEIGHTS: "{weights}"
{env}
"""
CONFIGURATION = """\
[engine]
recipe = "compiling"
[memory]
headroom_gib = {headroom}
contiguous_gib = 0
floor_mib = {floor}
[preflight]
skip = ["gpu"]
"""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    made = SparkdNode(make_node("trixie", package))
    for module in ("base/plan/compile_jobs.py", "agent/engine/compilers.py"):
        made.node.run("sed", "-i", rf"/^from .* import .*\bGIB\b/a GIB = {UNIT_BYTES}", f"{APP}/{module}")
        assert f"\nGIB = {UNIT_BYTES}\n" in made.node.read(f"{APP}/{module}")
    made.node.sh(f"cp -r /srv/models/tiny {MODEL} && rm {MODEL}/*.safetensors*")
    for program in STAND_IN:
        made.node.put(program, f"{MODEL}/{program.name}")
    made.node.put(PROGRAMS, "/root/programs")
    made.node.run("python3", "/root/programs/nvidia_runtime.py")
    made.node.run("systemctl", "reload", "docker")
    return made


class Watch:
    """A watch on a node's memory."""

    least_mib: int
    """The least that was available, once the watch has ended."""


@contextmanager
def watched(spark: SparkdNode) -> Iterator[Watch]:
    spark.node.sh("rm -f /root/least")
    spark.node.sh("setsid python3 /root/programs/memory_sampler.py /root/least >/dev/null 2>&1 &")
    watch = Watch()
    try:
        yield watch
    finally:
        for process in spark.node.found("memory_sampler.py /root/least$"):
            process.end()
        watch.least_mib = int(spark.node.read("/root/least")) >> 10
        print(f"least available: {watch.least_mib} MiB")


def make_cold(spark: SparkdNode, total: float, weights: float, floor_mib: int, **env: object) -> None:
    """Stop sparkd and drop its caches, on a node of `total` GiB in small, with a model of `weights` GiB."""
    spark.stop()
    spark.forget_failures()
    spark.node.sh("rm -rf /var/lib/sparkd/cache /var/lib/sparkd/warm.json")
    spark.node.memory(round(total * UNIT_BYTES))
    shard = (f"{MODEL}/model.safetensors", str(round(weights * UNIT_BYTES)))
    spark.node.run("python3", "/root/programs/weights_shard.py", *shard)
    added = "".join(f'  {name}: "{value}"\n' for name, value in env.items())
    spark.node.write("/etc/sparkd/recipes/compiling.yaml", RECIPE.format(unit=UNIT_BYTES, weights=weights, env=added))
    spark.configure(CONFIGURATION.format(headroom=2 * UNIT_BYTES / 2**30, floor=floor_mib))


def start_and_wait(spark: SparkdNode) -> tuple[float, str]:
    """Start sparkd, and wait until it serves. Returns the seconds that the engine took, and the journal since."""
    cursor = spark.cursor()
    spark.start()
    seconds = spark.engine_seconds(cursor)
    assert seconds is not None
    print(f"ready after {seconds:.0f} s")
    return seconds, spark.journal_since(cursor)


@pytest.mark.whole
@pytest.mark.parametrize("_", range(10))
def test_without_a_bound_the_memory_is_gone(spark: SparkdNode, _: int) -> None:
    make_cold(spark, *GB10, floor_mib=0, MAX_JOBS=22)
    before = spark.oom_kills()
    with watched(spark) as watch, spark.starting() as start:
        wait_for(lambda: spark.oom_kills() > before or start.poll() is not None, 90, "the kernel to kill")
        assert spark.oom_kills() > before, spark.node.journal(spark.unit)
        spark.stop()
    assert watch.least_mib < UNIT_BYTES >> 20


@pytest.mark.parametrize(
    ("total", "weights", "jobs"),
    [(*GB10, 2), *(pytest.param(*GB10, 2, marks=pytest.mark.whole) for _ in range(9)),
     pytest.param(59.6, 20, 2, marks=pytest.mark.whole), pytest.param(119.2, 40, 6, marks=pytest.mark.whole)],
)  # fmt: skip
def test_bounded_by_the_plan_it_serves_and_the_second_start_is_warm(
    spark: SparkdNode, total: float, weights: float, jobs: int
) -> None:
    make_cold(spark, total, weights, floor_mib=FLOOR_MIB, LARGE_SECONDS=1)
    with watched(spark) as watch:
        cold_seconds, journal = start_and_wait(spark)
    assert f"ninja -j {jobs}\n" in journal
    assert "engine.kernels.warming" in journal
    assert "engine.compilers.held" not in journal, "the bound alone was to do it"
    assert watch.least_mib > 2 * FLOOR_MIB
    spark.stop()
    warm_seconds, journal = start_and_wait(spark)
    assert "ninja" not in journal
    assert "engine.kernels.warming" not in journal
    assert warm_seconds < cold_seconds
    report = spark.report()
    assert report is not None
    assert report.engine.warmth == "warm"


@pytest.mark.whole
@pytest.mark.parametrize("_", range(10))
def test_compilers_that_nothing_bounds_are_held_back_and_it_serves(spark: SparkdNode, _: int) -> None:
    # Slower than by default: all of them take 12 GiB a second then, which is twelve times what was measured.
    make_cold(spark, *GB10, floor_mib=FLOOR_MIB, UNBOUNDED=1, LARGE_SECONDS=8)
    with watched(spark) as watch:
        journal = start_and_wait(spark)[1]
    assert "ninja -j 22\n" in journal
    assert "engine.compilers.held" in journal
    assert watch.least_mib > FLOOR_MIB
