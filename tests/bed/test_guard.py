"""The memory guard: an engine that eats all memory is ended before the kernel ends anything, and comes back."""

import json
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.space import REPOSITORY
from tests.bed.sparkd_node import CONFIGURATION, HEAD, SparkdNode

PROGRAMS = Path(__file__).with_name("programs")
RESULT = REPOSITORY / "build/guard.json"
FLOOR_MIB = 512
GUARD = "sparkd-guard"
RUNS = 20
PACES = {0.5: 3, 2.0: 7, 5.0: 7}
"""GB a second, and the node's memory in GiB before. On GB10 7.4 GiB were seen to go in 3 s: 2.6 GB/s."""
HELD_GIB = 0.5


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    made = SparkdNode(make_node("trixie", package))
    made.node.put(PROGRAMS, "/root/programs")
    return made


def eat(spark: SparkdNode) -> None:
    """In the rank's container, until nothing is left."""
    (rank,) = spark.containers()
    spark.node.run("docker", "cp", "/root/programs/eater.py", f"{rank}:/eater.py")
    spark.node.run("docker", "exec", "--detach", rank, "python3", "/eater.py", "0.5")


def check_end(spark: SparkdNode, cursor: str, oom_kills_before: int) -> None:
    """The one end since then was the guard's kill, with its account of it."""
    (end,) = spark.ends_since(cursor)
    assert end.startswith("code=16 "), end
    assert re.search(r"memory ran out: \d+ MiB available, below the floor of 512 MiB; the engine was killed", end), end
    assert re.search(r"[\d,]+ MiB \d\.\d s before", end), end
    assert "gpu_memory_utilization" in end
    assert spark.oom_kills() == oom_kills_before, "the kernel has killed first"
    report = spark.report()
    assert report is not None
    assert (report.last_cause_code, report.last_cause[-9:]) == ("memory-guard", "(exit 16)")


def test_an_engine_that_eats_all_memory_is_ended_with_16_and_serves_again_by_itself(spark: SparkdNode) -> None:
    spark.configure(CONFIGURATION + f"[memory]\nfloor_mib = {FLOOR_MIB}\n")
    spark.start()
    cursor, before, old = spark.cursor(), spark.oom_kills(), spark.main_pid()
    assert "memory_guard.watch.started" in spark.node.journal(spark.unit), "not locked, or not there"
    (guard,) = spark.node.pids("^sparkd-guard$")
    locked = re.search(r"^VmLck:\s+(\d+) kB", spark.node.read(f"/proc/{guard}/status"), re.MULTILINE)
    assert locked is not None
    assert int(locked[1]) > 2 << 10
    assert spark.show("MainPID", GUARD) == str(guard), "it is no child of the agent's"

    eat(spark)
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    spark.await_serving()
    check_end(spark, cursor, before)
    spark.stop()
    assert spark.leftovers() == []
    wait_for(lambda: spark.show("ActiveState", GUARD) == "inactive", 10, "the guard to end, with nothing to watch")


@pytest.mark.whole
def test_a_kill_during_a_reload_of_the_agent_has_the_guards_account(spark: SparkdNode) -> None:
    """One reload after the other while the memory goes: the kill meets an agent that leaves, or one that comes."""
    spark.configure(CONFIGURATION + f"[memory]\nfloor_mib = {FLOOR_MIB}\n")
    spark.start()
    cursor, before, reloads = spark.cursor(), spark.oom_kills(), 0
    eat(spark)
    while spark.node.run("systemctl", "reload", spark.unit, check=False).returncode == 0:
        reloads += 1
    assert reloads > 1, "no reload was under way when the memory went"
    wait_for(lambda: spark.ends_since(cursor), 60, "the end to be logged")
    spark.await_serving()
    check_end(spark, cursor, before)
    spark.stop()


DROP_IN = f"/etc/systemd/system/{HEAD}.service.d/gone.conf"


@pytest.mark.whole
def test_a_rank_that_its_agent_has_left_for_good_is_killed_by_the_guard_when_the_lease_ends(spark: SparkdNode) -> None:
    spark.configure()
    spark.node.write(DROP_IN, "[Service]\nRestart=no\nExecStopPost=\n")
    spark.node.run("systemctl", "daemon-reload")
    try:
        spark.start()
        rank = spark.rank()
        spark.node.run("systemctl", "kill", "--signal=KILL", spark.unit)
        wait_for(lambda: not spark.active(), 10, "the agent to be gone")
        gone = time.monotonic()
        (first,) = spark.node.pids("^sparkd-guard$")
        spark.node.run("kill", "-KILL", str(first))
        wait_for(lambda: spark.node.pids("^sparkd-guard$") not in ([], [first]), 10, "systemd to start another guard")
        time.sleep(20)
        assert all(one.alive for one in rank), "it is left alone while an agent may come back"
        wait_for(lambda: not any(one.alive for one in rank), 75 - (time.monotonic() - gone), "the lease to end")
        wait_for(lambda: "has been away for 60 s" in spark.node.journal(GUARD), 5, "the guard's line")
    finally:
        spark.node.run("rm", DROP_IN)
        spark.node.run("systemctl", "daemon-reload")
    spark.start()
    spark.stop()
    assert spark.leftovers() == []


@dataclass(frozen=True)
class Fall:
    """How one went. `spare_mib`: what was left beside the guard's kill, as the shrinking machine had it."""

    caught: bool
    left_mib: int
    spare_mib: int


def fall(spark: SparkdNode, pace: float, memory_gib: int) -> Fall:
    """Memory goes at this pace until the stand-in is dead, or until there is none left.

    No program of this machine can take 5 GB/s: it is the node's memory that shrinks.
    """
    whole = memory_gib << 30
    spark.node.memory(whole)
    holds = ("/root/programs/eater.py", "5", str(HELD_GIB))
    command = spark.node.entered("python3", "-IBS", "/root/programs/guarded.py", str(FLOOR_MIB), *holds)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        (eater,) = spark.node.found("^python3 -S .*eater")
        available = _available_bytes(spark)
        began, left = time.monotonic(), available
        try:
            while eater.alive and left > 0:
                left = available - round((time.monotonic() - began) * pace * 1e9)
                spark.node.memory(whole - available + max(0, left))
                time.sleep(0.002)
        except OSError:  # the kernel finds nothing more to take
            left = 0
        finally:
            spark.node.memory(whole)
            eater.send(signal.SIGKILL)
        outcome = json.loads(process.stdout.readline())
    found = re.search(r"memory ran out: ([\d,]+) MiB available", outcome["event"])
    return Fall(outcome["caught"] and left > 0, int(found[1].replace(",", "")) if found else 0, left >> 20)


def _available_bytes(spark: SparkdNode) -> int:
    return int(spark.node.sh("grep MemAvailable /proc/meminfo").stdout.split()[1]) << 10


@pytest.mark.whole
def test_it_comes_before_the_kernel_at_every_pace(spark: SparkdNode) -> None:
    """The guard itself, on stand-ins for a rank: without an engine to restart, sixty runs take some minutes."""
    table = {}
    before = spark.oom_kills()
    for pace, memory_gib in PACES.items():
        falls = [fall(spark, pace, memory_gib) for _ in range(RUNS)]
        table[str(pace)] = {
            "runs": RUNS,
            "caught": sum(one.caught for one in falls),
            "seen_mib": sorted(one.left_mib for one in falls),
            "spare_mib": sorted(one.spare_mib for one in falls),
        }
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"schema": 2, "floor_mib": FLOOR_MIB, "paces": table}, indent=1) + "\n")
    for at, row in table.items():
        assert row["caught"] == RUNS, (at, row)
    assert spark.oom_kills() == before
