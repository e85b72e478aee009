"""The memory guard: an engine that eats all memory is ended before the kernel ends anything, and comes back."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import CONFIGURATION, SparkdNode

PROGRAMS = Path(__file__).with_name("programs")
RESULT = REPOSITORY / "build/guard.json"
FLOOR_MIB = 512
RUNS = 20
PACES = {0.5: 3, 2.0: 8, 5.0: 8}
"""GB a second, and the node's memory in GiB. On GB10 7.4 GiB were seen to go in 3 s: 2.6 GB/s."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    made = SparkdNode(make_node("trixie"))
    made.install(package)
    made.node.put(PROGRAMS, "/root/programs")
    return made


def oom_kills(spark: SparkdNode) -> int:
    return int(spark.node.sh("grep -w oom_kill /proc/vmstat").stdout.split()[1])


def test_an_engine_that_eats_all_memory_is_ended_with_16_and_serves_again_by_itself(spark: SparkdNode) -> None:
    spark.configure(CONFIGURATION + f"[memory]\nfloor_mib = {FLOOR_MIB}\n")
    spark.start()
    cursor, before, old = spark.cursor(), oom_kills(spark), spark.main_pid()
    assert "guard.memory.watched" in spark.node.journal(spark.unit), "not locked, or not there"
    (guard,) = spark.node.pids("^sparkd-guard$")
    locked = re.search(r"^VmLck:\s+(\d+) kB", spark.node.read(f"/proc/{guard}/status"), re.MULTILINE)
    assert locked is not None
    assert int(locked[1]) > 2 << 10

    (rank,) = spark.containers()
    spark.node.run("docker", "cp", "/root/programs/eater.py", f"{rank}:/eater.py")
    spark.node.run("docker", "exec", "--detach", rank, "python3", "/eater.py", "0.5")
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    spark.await_serving()

    (end,) = spark.ends_since(cursor)
    assert end.startswith("code=16 "), end
    assert re.search(r"memory ran out: \d+ MiB available, below the floor of 512 MiB; the engine was killed", end), end
    assert re.search(r"[\d,]+ MiB \d\.\d s before", end), end
    assert "gpu_memory_utilization" in end
    assert oom_kills(spark) == before, "the kernel has killed first"
    report = spark.report()
    assert report is not None
    assert report.last_cause.startswith("memory ran out"), report.last_cause
    assert report.last_cause.endswith("(exit 16)")
    spark.stop()
    assert spark.leftovers() == []


@pytest.mark.whole
def test_it_comes_before_the_kernel_at_every_pace(spark: SparkdNode) -> None:
    """The guard itself, on stand-ins for a rank: without an engine to restart, sixty runs take some minutes."""
    table = {}
    for pace, memory_gib in PACES.items():
        spark.node.memory(memory_gib << 30)
        began = time.monotonic()
        command = ("python3", "-IBS", "/root/programs/guarded.py", str(FLOOR_MIB), str(pace), str(RUNS))
        done = spark.node.run(*command, timeout=600)
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        rates = sorted(int(found[1].replace(",", "")) for run in runs if (found := _FELL.search(run["said"])))
        lowest = sorted(int(found[1].replace(",", "")) for run in runs if (found := _LEFT.search(run["said"])))
        table[str(pace)] = {
            "runs": len(runs),
            "caught": sum(run["caught"] and not run["kernel_killed"] for run in runs),
            "mib_per_second": rates,
            "mib_left": lowest,
            "seconds": round(time.monotonic() - began, 1),
        }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"schema": 1, "floor_mib": FLOOR_MIB, "paces": table}, indent=1) + "\n")
    print(json.dumps(table))
    for at, row in table.items():
        assert row["runs"] == row["caught"] == RUNS, (at, row)


_FELL = re.compile(r"it fell by ([\d,]+) MiB/s")
_LEFT = re.compile(r"memory ran out: ([\d,]+) MiB available")
