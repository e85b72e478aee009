"""Clusters of simulated nodes on the loopback of the network namespace that this runs in; nothing else may use it.

simulated.py NODES...     one line of JSON for each size, a Result
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO

NODE = Path(__file__).parent / "node.py"
LOADING_NODES = 16
"""Where more publish their progress every second, two cores can't carry it: 32 nodes make 1000 exchanges a second."""
LOADING_SECONDS = 8.0
SERVING_SECONDS = 10.1
"""Two whole turns: an answer is held back for five seconds, and a pause follows."""
MEETING_SECONDS = 60.0
LOOK_SECONDS = 1.0
SETTLE_SECONDS = 1.5
NEWS, NEWS_PAUSE_SECONDS = 12, 0.3


@dataclass(frozen=True)
class Mark:
    """Of one node until now. `cpu` in seconds, `pss` in KiB, `hears`: how many others answer."""

    at: float
    cpu: float
    pss: int
    hears: int


@dataclass(frozen=True)
class Traffic:
    """Of this loopback. `segments`: of TCP, those that carry data."""

    bytes: int
    segments: int


@dataclass(frozen=True)
class State:
    """What the nodes did for a while."""

    cpu_percent: tuple[float, ...]
    """Of a core, each node."""
    exchanges_per_second: float
    """Of all nodes."""
    latency_seconds: tuple[float, ...] = ()
    """Of each message, until the main loop of every other node had seen it."""


@dataclass(frozen=True)
class Result:
    nodes: int
    grown_mib: tuple[float, ...]
    """PSS of each node, over the same node before it joined."""
    loading: State | None
    """None where there are too many nodes for this machine."""
    serving: State
    """The messages are changes of phase."""


@dataclass(frozen=True)
class Log:
    """Of one node: when it published its messages, and when it saw those of the others, on CLOCK_MONOTONIC."""

    published: dict[str, float]
    seen: dict[str, float]


def latencies(logs: Sequence[Log]) -> tuple[float, ...]:
    """Of every message that all others have seen: one that came too late for this log, or that a newer one overtook
    before it was read, is left out."""
    delays = []
    for sender in logs:
        others = [log.seen for log in logs if log is not sender]
        for message, published_at in sender.published.items():
            if all(message in seen for seen in others):
                delays.append(round(max(seen[message] for seen in others) - published_at, 4))
    return tuple(delays)


class Nodes:
    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        for process in processes:
            _line(process)  # it has begun

    def say(self, word: str, only: int | None = None) -> list[str]:
        """Say it to all, or to one rank; their answers."""
        chosen = self._processes if only is None else [self._processes[only]]
        for process in chosen:
            _stream(process.stdin).write(f"{word}\n")
            _stream(process.stdin).flush()
        return [_line(process) for process in chosen]

    def marks(self) -> list[Mark]:
        return [Mark(**json.loads(line)) for line in self.say("mark")]

    def latencies(self) -> tuple[float, ...]:
        """Since the last request for them."""
        return latencies([Log(**json.loads(line)) for line in self.say("seen")])

    def meet(self) -> None:
        self.say("join")
        deadline = time.monotonic() + MEETING_SECONDS
        while min(mark.hears for mark in self.marks()) < len(self._processes) - 1:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self._processes)} nodes did not all meet within {MEETING_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def watched(self, seconds: float) -> State:
        before, then = self.marks(), traffic()
        time.sleep(seconds)
        now, after = traffic(), self.marks()
        pairs = list(zip(before, after, strict=True))
        took = median(last.at - first.at for first, last in pairs)
        cpu = tuple(round(100 * (last.cpu - first.cpu) / (last.at - first.at), 3) for first, last in pairs)
        return State(cpu, round((now.segments - then.segments) / 2 / took, 2))  # a question is a segment, an answer too


@contextmanager
def running(count: int) -> Iterator[Nodes]:
    """Nodes that have not met yet."""
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "cluster.key"
        with os.fdopen(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        pipe = subprocess.PIPE
        processes = [
            subprocess.Popen(
                [sys.executable, NODE, str(count), str(rank), key_file, folder], stdin=pipe, stdout=pipe, text=True
            )
            for rank in range(count)
        ]
        try:
            yield Nodes(processes)
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def measured(count: int) -> Result:
    with running(count) as nodes:
        alone = nodes.marks()
        nodes.meet()
        loading = _loading(nodes) if count <= LOADING_NODES else None
        nodes.say("still")
        time.sleep(SETTLE_SECONDS)
        serving = nodes.watched(SERVING_SECONDS)
        together = nodes.marks()
        nodes.latencies()
        for turn in range(NEWS):
            nodes.say("news", turn % count)
            time.sleep(NEWS_PAUSE_SECONDS)
        time.sleep(SETTLE_SECONDS)
        news = nodes.latencies()
    if len(news) < NEWS:
        raise SystemExit(f"of {NEWS} changes of phase, {len(news)} reached all of {count} nodes")
    grown = tuple(round((after.pss - before.pss) / 1024, 2) for before, after in zip(alone, together, strict=True))
    return Result(count, grown, loading, State(serving.cpu_percent, serving.exchanges_per_second, news))


def _loading(nodes: Nodes) -> State:
    nodes.say("load")
    time.sleep(SETTLE_SECONDS)
    nodes.latencies()
    found = nodes.watched(LOADING_SECONDS)
    return State(found.cpu_percent, found.exchanges_per_second, nodes.latencies())


def traffic() -> Traffic:
    lines = Path("/proc/net/dev").read_text().splitlines()
    (loopback,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    names, values = (
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    )
    return Traffic(int(loopback[0]), int(values[names.index("TCPOrigDataSent")]))


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _line(process: subprocess.Popen[str]) -> str:
    line = _stream(process.stdout).readline()
    if not line:
        raise SystemExit(f"a node ended with {process.wait()}")
    return line


if __name__ == "__main__":
    for size in sys.argv[1:]:
        print(json.dumps(asdict(measured(int(size)))), flush=True)
