"""What the agent costs a node that serves, with its memory guard: memory and processor."""

import os
import re
import time

from tests.bed import BedError

from .bench_node import BenchNode, answer
from .figures import Figure, Limit, Spread
from .machine import load

SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""READY is behind it: its own last work is no part of serving."""
PSS = Limit(76.0, goal=64.0)
IDLE_CPU, LOADED_CPU = Limit(0.2), Limit(0.5)
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def measure(bench: BenchNode) -> tuple[Figure, ...]:
    bench.serve()
    time.sleep(SETTLE_SECONDS)
    idle = _cpu_percent(bench, SECONDS)
    with bench.prober("load", SECONDS) as prober:
        loaded = _cpu_percent(bench, SECONDS)
        completions = answer(prober)
    if completions["succeeded"] < completions["sent"]:
        raise BedError(f"of {completions['sent']:g} completions only {completions['succeeded']:g} came")
    return (
        Figure("agent.pss", "memory of the serving agent and its guard (PSS)", "MiB", _pss(bench), PSS, load=load()),
        Figure("agent.cpu-idle", "its CPU, no requests, over 60 s", "% of a core", idle, IDLE_CPU, load=load()),
        Figure("agent.cpu-loaded", "its CPU, a request a second", "% of a core", loaded, LOADED_CPU, load=load()),
    )


def _processes(bench: BenchNode) -> tuple[int, int]:
    """The agent and its guard."""
    return bench.spark.main_pid(), bench.spark.pid("^sparkd-guard$")


def _pss(bench: BenchNode) -> Spread:
    kib = 0
    for pid in _processes(bench):
        found = _PSS.search(bench.spark.node.read(f"/proc/{pid}/smaps_rollup"))
        if found is None:
            raise BedError("this kernel says no Pss in smaps_rollup")
        kib += int(found[1])
    return Spread((round(kib / 1024, 1),))


def _cpu_percent(bench: BenchNode, seconds: float) -> Spread:
    pids = _processes(bench)
    began, before = time.monotonic(), sum(_cpu_seconds(bench, pid) for pid in pids)
    time.sleep(seconds)
    used, took = sum(_cpu_seconds(bench, pid) for pid in pids) - before, time.monotonic() - began
    return Spread((round(100 * used / took, 3),))


def _cpu_seconds(bench: BenchNode, pid: int) -> float:
    """Of all its threads, also of those that have ended."""
    fields = bench.spark.node.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
