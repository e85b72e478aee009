"""What an engine outlives, under streaming clients: an agent that crashes or is reloaded, and dockerd's restart where
live-restore is on; on either node, or on both.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sparkd.agent.daemon.taking_over import TAKEOVERS_ALLOWED
from sparkd.base.status.model import NodeReport

from .node import Node
from .pair import Cluster
from .processes import wait_for
from .sparkd_node import SparkdNode

CLIENTS, TOKENS = 16, 48
PROGRAM = Path(__file__).with_name("programs") / "streams.py"
BACK_SECONDS = 8.0
"""Until the next agent serves, by its report, without its waits for a processor: 1.4 to 4.6 s (one is systemd's).

Beside two endless loops too: it served after 11.2 s, of which its start had waited 7.0 for a processor.
"""
LOOK_SECONDS = 0.5
"""Pause between two looks, each of which starts six programs on the cores that the agents start on."""
QUIET_SECONDS = 2.0
LOG_SECONDS = 20.0
"""For a line to come through docker's pipe, a dockerd that has just started, and the next try to follow the log."""
LONGEST_SECONDS = 300.0
"""For the last requests to end, behind a prefill of minutes."""
AWAY = "/run/marks"
"""Of the lines that were logged while dockerd was away."""


@dataclass
class Streams:
    requests: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def streaming(node: Node, clients: int = CLIENTS, tokens: int = TOKENS) -> Iterator[Streams]:
    """Clients that stream from now on. Once left, what came of their requests, the last ones too."""
    streams = Streams()
    node.put(PROGRAM, "/root/streams.py")
    command = node.entered("python3", "-IBS", "/root/streams.py", str(clients), str(tokens))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield streams
        output, _ = process.communicate("over\n", timeout=LONGEST_SECONDS)
    answer = json.loads(output)
    streams.requests, streams.wrong = answer["requests"], answer["wrong"]


@dataclass(frozen=True)
class Crash:
    name: str
    act: Callable[[SparkdNode], object]
    ranks: tuple[int, ...]
    """Of the nodes whose agents it is done to."""
    back_seconds: float = BACK_SECONDS
    """Longer where docker is stopped or started, or an image made, in that time."""
    new_pid: bool = True
    in_ci: bool = False
    kills: int = 1
    """How often each of these agents is killed."""
    after: Callable[[SparkdNode], object] = lambda _: None
    """Once all is back, while the clients still stream."""


def processor_wait(member: SparkdNode) -> float:
    """Seconds that the agent's main thread has waited for a processor, which engines and clients keep busy."""
    return int(member.node.read(f"/proc/{member.main_pid()}/schedstat").split()[1]) / 1e9


def kill(member: SparkdNode) -> None:
    member.node.kill(member.main_pid(), signal.SIGKILL)


def abort(member: SparkdNode) -> None:
    member.node.kill(member.main_pid(), signal.SIGABRT)


def stop_until_the_watchdog(member: SparkdNode) -> None:
    """Frozen: systemd ends it once it has not been heard for 30 s."""
    member.node.kill(member.main_pid(), signal.SIGSTOP)


def reload(member: SparkdNode) -> None:
    member.node.run("systemctl", "reload", member.unit)


def kill_twice(member: SparkdNode) -> None:
    """The second time while the next one takes the rank over."""
    old = member.main_pid()
    kill(member)
    wait_for(lambda: member.main_pid() not in (0, old), 20, "the next agent", pause=0.005)
    kill(member)


def kill_twice_late(member: SparkdNode) -> None:
    """The second time once the next one has the node's lock, which is before the rank is its own."""
    old = member.main_pid()
    kill(member)

    def owner() -> int:
        return int(json.loads(member.node.read("/run/sparkd/owner.json"))["pid"])

    wait_for(lambda: owner() != old, 30, "the next agent to have the lock", pause=0.005)
    kill(member)


def kill_beside_sweeps(member: SparkdNode) -> None:
    member.node.sh("(for _ in $(seq 8); do sparkd sweep & sparkd sweep & sparkd sweep; done; wait) >/run/sweeps 2>&1 &")
    time.sleep(2)
    kill(member)


def sweeps_left_it(member: SparkdNode) -> None:
    wait_for(lambda: not member.node.pids("sparkd sweep"), 60, "the sweeps to end")
    log = member.node.read("/run/sweeps")
    assert "stopped and removed" not in log and "Traceback" not in log, log
    print(f"{log.count('is left alone')} sweeps left it alone")


def recipe_image(member: SparkdNode) -> str:
    name = json.loads(member.node.run("sparkd", "plan", "--json").stdout)["image"]
    assert isinstance(name, str)
    return name


def kill_beside_another_image(member: SparkdNode) -> None:
    """Which has the recipe's name from the moment of the crash on."""
    name = recipe_image(member)
    member.node.sh(f"docker tag {name} bed-kept:1; tar -cT /dev/null | docker import - bed-other:1")
    kill(member)
    member.node.run("docker", "tag", "bed-other:1", name)


def give_the_image_back(member: SparkdNode) -> None:
    member.node.sh(f"docker tag bed-kept:1 {recipe_image(member)} && docker rmi bed-kept:1 bed-other:1")


def log_line(member: SparkdNode) -> str:
    """A line that the engine logs now, whether or not there is a dockerd."""
    mark = f"mark-{secrets.token_hex(4)}"
    pid = json.loads(member.node.read("/run/sparkd/private/rank.json"))["pid"]
    member.node.sh(f"echo {mark} >/proc/{pid}/fd/1; echo {mark} >>{AWAY}")
    return mark


def log_is_followed(member: SparkdNode) -> None:
    """Each line that was logged meanwhile has come, and so does the next."""
    log_line(member)
    marks = member.node.read(AWAY).split()
    wait_for(lambda: all(one in member.node.journal(member.unit) for one in marks), LOG_SECONDS, f"the lines {marks}")
    member.node.run("rm", AWAY)

    def noted() -> bool:
        """Else an end would be laid on the dockerd that is gone."""
        return not json.loads(member.node.read("/run/sparkd/private/rank.json"))["dockerd_pid"]

    wait_for(noted, LOG_SECONDS, "the dockerd that keeps the rank to be noted")


def restart_docker(member: SparkdNode) -> None:
    """A line is logged while it is away."""
    member.node.run("systemctl", "restart", "--no-block", "docker")
    wait_for(lambda: member.show("ActiveState", "docker") == "activating", 20, "dockerd to be away")
    log_line(member)
    wait_for(lambda: member.show("ActiveState", "docker") == "active", 60, "the next dockerd")


def kill_without_docker(member: SparkdNode) -> None:
    member.node.run("systemctl", "stop", "docker.socket", "docker.service", timeout=60)
    kill(member)
    log_line(member)


def start_docker(member: SparkdNode) -> None:
    log_line(member)
    member.node.run("systemctl", "start", "docker.socket", "docker.service", timeout=60)
    log_is_followed(member)


CRASHES = (
    Crash("kill -9 of the head's agent", kill, (0,)),
    Crash("kill -9 of the worker's agent", kill, (1,)),
    Crash("kill -9 of both agents", kill, (0, 1), in_ci=True),
    Crash("a core dump of the head's agent", abort, (0,)),
    Crash("the watchdog of the worker's agent", stop_until_the_watchdog, (1,), back_seconds=35 + BACK_SECONDS),
    Crash("the watchdog of the head's agent", stop_until_the_watchdog, (0,), back_seconds=35 + BACK_SECONDS),
    Crash("reload of the head's agent", reload, (0,), new_pid=False, in_ci=True),
    Crash("reload of both agents", reload, (0, 1), new_pid=False),
)


TAKING_OVER = (
    Crash("a second kill -9 while the head's rank is taken over", kill_twice, (0,), 2 * BACK_SECONDS, kills=2),
    Crash("a second kill -9 while the worker's rank is taken over", kill_twice, (1,), 2 * BACK_SECONDS, kills=2),
    Crash("a second kill -9 once the next agent has the lock", kill_twice_late, (0,), 3 * BACK_SECONDS, kills=2),
    Crash("sweeps by hand beside kill -9", kill_beside_sweeps, (0,), 4 * BACK_SECONDS, after=sweeps_left_it),
    Crash("another image beside kill -9", kill_beside_another_image, (0,), 3 * BACK_SECONDS, after=give_the_image_back),
)
LIVE_RESTORE = (
    Crash("dockerd restarted on the head", restart_docker, (0,), 20, new_pid=False, kills=0, after=log_is_followed),
    Crash("dockerd restarted on the worker", restart_docker, (1,), 20, new_pid=False, kills=0, after=log_is_followed),
    Crash("dockerd restarted on both", restart_docker, (0, 1), 30, new_pid=False, kills=0, after=log_is_followed),
    Crash("kill -9 of the head's agent without dockerd", kill_without_docker, (0,), 30, after=start_docker),
    Crash("kill -9 of the worker's agent without dockerd", kill_without_docker, (1,), 30, after=start_docker),
)


def count(member: SparkdNode) -> int:
    """How often the rank that runs here was taken over after a crash."""
    return len(json.loads(member.node.read("/run/sparkd/private/rank.json"))["taken_over"])


def run(crash: Crash, cluster: Cluster) -> tuple[float, list[str]]:
    """Seconds until all reports were right again, without waits for a processor, and complaints."""
    members = [cluster.members[rank] for rank in crash.ranks]
    before, containers = cluster.moment(), [member.containers() for member in cluster.members]
    reports = [member.report() for member in cluster.members]
    waits = [0.0 if crash.new_pid else processor_wait(member) for member in members]
    with streaming(cluster.head.node) as streams:
        time.sleep(QUIET_SECONDS)
        began, killed_at = time.monotonic(), time.time()
        now: list[NodeReport | None] = []
        for member in members:
            crash.act(member)

        def back() -> bool:
            now[:] = [member.report() for member in cluster.members]
            again = all(now[rank] is not None and reports[rank] != now[rank] for rank in crash.ranks)
            pids = [member.main_pid() for member in cluster.members]
            new = all((pids[rank] != before.agents[rank]) == crash.new_pid for rank in crash.ranks)
            living = all(report is not None and report.pid == pid for report, pid in zip(now, pids, strict=True))
            serves = all(report is not None and report.phase.value == "serving" for report in now)
            contact = all(peer.contact.value == "answers" for report in now if report for peer in report.peers)
            return again and new and living and serves and contact

        wait_for(back, crash.back_seconds + 60, f"every agent to be back\n{cluster.describe()}", LOOK_SECONDS)
        looked = time.monotonic() - began
        # By the reports: a look at two nodes takes seconds while engines and clients have both cores.
        reported = [report for rank in crash.ranks if (report := now[rank]) is not None]
        served = [datetime.fromisoformat(report.since).timestamp() - killed_at for report in reported]
        waited = max(processor_wait(member) - wait for member, wait in zip(members, waits, strict=True))
        took = max(served) if min(served) > 0 else looked
        print(f"seen after {looked:.1f} s, of which {waited:.1f} s without a processor")
        took -= waited
        for member in members:
            crash.after(member)
        time.sleep(QUIET_SECONDS)
    complaints = [f"{wrong} of {streams.requests} requests" for wrong in streams.wrong]
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


def renew_rank(crash: Crash, serving: Cluster) -> None:
    """Another rank, where one more crash of this one's agents would count as a fault of sparkd's."""
    if any(count(member) + crash.kills > TAKEOVERS_ALLOWED for member in serving.members):
        serving.stop()
        serving.settle()


def outlive(crash: Crash, serving: Cluster) -> None:
    """No request is lost, and nothing but the agents is another. Fails with all complaints."""
    renew_rank(crash, serving)
    took, complaints = run(crash, serving)
    print(f"{crash.name}: back after {took:.1f} s")
    assert not complaints, "\n".join(complaints)
