"""What an engine outlives: an agent that crashes or is reloaded, on either node or on both, under streaming clients."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .node import Node
from .pair import Cluster
from .processes import wait_for
from .sparkd_node import SparkdNode

CLIENTS, TOKENS = 16, 48
PROGRAM = Path(__file__).with_name("programs") / "streams.py"
BACK_SECONDS = 8.0
"""Until all reports are seen to be right: 2.9 to 3.5 s by the journals (one is systemd's, and the new agent's start
shares two cores with two engines under load), and the looks themselves.
"""
QUIET_SECONDS = 2.0


@dataclass
class Streams:
    requests: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def streaming(node: Node, clients: int = CLIENTS, tokens: int = TOKENS) -> Iterator[Streams]:
    """Clients that stream from now on. Once left, what came of their requests, the last ones too."""
    found = Streams()
    node.put(PROGRAM, "/root/streams.py")
    command = node.entered("python3", "-IBS", "/root/streams.py", str(clients), str(tokens))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield found
        said, _ = process.communicate("over\n", timeout=180)
    answer = json.loads(said)
    found.requests, found.wrong = answer["requests"], answer["wrong"]


@dataclass(frozen=True)
class Crash:
    name: str
    act: Callable[[SparkdNode], object]
    ranks: tuple[int, ...]
    """Of the nodes whose agents it is done to."""
    back_seconds: float = BACK_SECONDS
    new_pid: bool = True
    in_ci: bool = False


def kill(member: SparkdNode) -> None:
    member.node.kill(member.main_pid(), signal.SIGKILL)


def abort(member: SparkdNode) -> None:
    member.node.kill(member.main_pid(), signal.SIGABRT)


def stop_until_the_watchdog(member: SparkdNode) -> None:
    """Frozen: systemd ends it once it has not been heard for 30 s."""
    member.node.kill(member.main_pid(), signal.SIGSTOP)


def reload(member: SparkdNode) -> None:
    member.node.run("systemctl", "reload", member.unit)


CRASHES = (
    Crash("kill -9 of the head's agent", kill, (0,), in_ci=True),
    Crash("kill -9 of the worker's agent", kill, (1,), in_ci=True),
    Crash("kill -9 of both agents", kill, (0, 1), in_ci=True),
    Crash("a core dump of the head's agent", abort, (0,)),
    Crash("the watchdog of the worker's agent", stop_until_the_watchdog, (1,), back_seconds=35 + BACK_SECONDS),
    Crash("reload of the head's agent", reload, (0,), new_pid=False, in_ci=True),
    Crash("reload of both agents", reload, (0, 1), new_pid=False),
)


def count(member: SparkdNode) -> int:
    """How often the rank that runs here was taken over after a crash."""
    return len(json.loads(member.node.read("/run/sparkd/private/rank.json"))["taken_over"])


def run(crash: Crash, cluster: Cluster) -> tuple[float, list[str]]:
    """Seconds until all reports were right again, and complaints."""
    members = [cluster.members[rank] for rank in crash.ranks]
    before, containers = cluster.moment(), [member.containers() for member in cluster.members]
    reports = [member.report() for member in cluster.members]
    with streaming(cluster.head.node) as streams:
        time.sleep(QUIET_SECONDS)
        began = time.monotonic()
        for member in members:
            crash.act(member)

        def back() -> bool:
            now = [member.report() for member in cluster.members]
            again = all(now[rank] is not None and reports[rank] != now[rank] for rank in crash.ranks)
            pids = [member.main_pid() for member in cluster.members]
            new = all((pids[rank] != before.agents[rank]) == crash.new_pid for rank in crash.ranks)
            living = all(one is not None and one.pid == pid for one, pid in zip(now, pids, strict=True))
            serves = all(one is not None and one.phase.value == "serving" for one in now)
            contact = all(peer.contact.value == "answers" for one in now if one for peer in one.peers)
            return again and new and living and serves and contact

        wait_for(back, crash.back_seconds + 60, f"every agent to be back\n{cluster.describe()}")
        took = time.monotonic() - began
        time.sleep(QUIET_SECONDS)
    complaints = [f"{one} of {streams.requests} requests" for one in streams.wrong]
    if any(not process.alive for rank in before.ranks for process in rank):
        complaints.append("a process of a rank has ended")
    if [member.containers() for member in cluster.members] != containers:
        complaints.append("there is another container")
    if not all(member.active() for member in cluster.members):
        complaints.append("a unit is not active")
    if took > crash.back_seconds:
        complaints.append(f"back after {took:.1f} s of {crash.back_seconds:g}")
    if streams.requests < CLIENTS:
        complaints.append(f"only {streams.requests} requests")
    return took, complaints
