"""What is done to a pair of nodes to cause a fault, to observe it meanwhile, and to repair it.

Causes give the moment, monotonic, at which it happened.
"""

import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import differences, load, victims
from .pair import Cluster
from .processes import wait_for
from .sparkd_node import SparkdNode

EATER = Path(__file__).with_name("programs") / "eater.py"
EATEN_GB_PER_SECOND = 0.5
FABRIC = "enp1s0f0np0"
DEGRADED_SECONDS = 20.0
"""From the first request that hangs."""
HEAD_SIDE, WORKER_SIDE, BOTH, LINK = "head", "worker", "both", "link"


def nothing(_: Cluster) -> None:
    pass


def member(cluster: Cluster, side: str) -> SparkdNode:
    return cluster.head if side == HEAD_SIDE else cluster.worker


def other(side: str) -> str:
    return WORKER_SIDE if side == HEAD_SIDE else HEAD_SIDE


def kill(side: str, victim: Callable[[SparkdNode], int], cluster: Cluster) -> float:
    node = member(cluster, side)
    pid, now = victim(node), time.monotonic()
    node.node.kill(pid, signal.SIGKILL)
    return now


def docker_kill(side: str, cluster: Cluster) -> float:
    node = member(cluster, side)
    names, now = node.containers(), time.monotonic()
    node.node.run("docker", "kill", *names)
    return now


def docker_stop(side: str, cluster: Cluster) -> float:
    node = member(cluster, side)
    names, now = node.containers(), time.monotonic()
    node.node.sh(f"docker stop {' '.join(names)} >/dev/null 2>&1 &")
    return now


def restart_docker(side: str, cluster: Cluster) -> float:
    now = time.monotonic()
    member(cluster, side).node.run("systemctl", "restart", "--no-block", "docker")
    return now


def kill_without_docker(side: str, cluster: Cluster) -> float:
    """dockerd hangs, and nobody reports how the engine ended."""
    node = member(cluster, side)
    node.node.kill(victims.dockerd(node), signal.SIGSTOP)
    return kill(side, victims.main_of_engine, cluster)


def wake_docker(side: str, cluster: Cluster) -> None:
    node = member(cluster, side)
    node.node.kill(victims.dockerd(node), signal.SIGCONT)


def lose_address(side: str, cluster: Cluster) -> float:
    now = time.monotonic()
    member(cluster, side).node.sh(f"ip address flush dev {FABRIC}")
    return now


def regain_address(side: str, cluster: Cluster) -> None:
    member(cluster, side).node.run("networkctl", "reconfigure", FABRIC)


def hang(side: str, cluster: Cluster) -> float:
    node = member(cluster, side)
    load.begin(cluster.head.node)
    node.node.kill(victims.worker(node), signal.SIGSTOP)
    return time.monotonic()


def pause(side: str, cluster: Cluster) -> float:
    """The rank of an idle engine stands still; then one request comes."""
    node = member(cluster, side)
    node.node.run("docker", "pause", *node.containers())
    now = time.monotonic()
    load.send_once(cluster.head.node)
    return now


def degraded_in_time(cluster: Cluster) -> None:
    """Every node has reported it, and soon enough after the request."""
    sent = load.sent_at(cluster.head.node)
    for spark in cluster.members:
        lines = spark.node.journal(spark.unit, "--output=short-unix", f"--since=@{sent:.3f}")
        found = re.search(r"^([\d.]+) .*agent\.phase\.changed phase=degraded", lines, re.MULTILINE)
        assert found, f"{spark.node.name} was never degraded"
        took = float(found[1]) - sent
        assert took <= DEGRADED_SECONDS, f"{spark.node.name} was degraded after {took:.1f} s"
        print(f"{spark.node.name}: degraded {took:.1f} s after the request")


def halt(side: str, cluster: Cluster) -> float:
    """Its worker process, once there is one."""
    node = member(cluster, side)
    wait_for(lambda: node.node.pids("^VLLM::Worker"), 60, "the worker process of a rank that loads")
    node.node.kill(victims.worker(node), signal.SIGSTOP)
    return time.monotonic()


def eat(side: str, cluster: Cluster) -> float:
    """The node's memory goes, in its engine's container, until the guard ends what runs there."""
    node = member(cluster, side)
    (rank,) = node.containers()
    node.node.put(EATER, "/root/eater.py")
    node.node.run("docker", "cp", "/root/eater.py", f"{rank}:/eater.py")
    now = time.monotonic()
    node.node.run("docker", "exec", "--detach", rank, "python3", "/eater.py", str(EATEN_GB_PER_SECOND))
    return now


def counted(side: str, cluster: Cluster) -> None:
    """By the ledger of the node whose engine it was, and by no other, once both have restarted."""
    fallen, waiting = member(cluster, side), member(cluster, other(side))
    wait_for(lambda: waiting.phase() == "awaiting-peers", 20, "the other node to wait")
    wait_for(lambda: list(fallen.failures().values()) == [1], 20, "the ledger to count it")
    assert not waiting.failures(), f"counted on the other node: {waiting.failures()}"


def quiet(cluster: Cluster) -> None:
    load.end(cluster.head.node)


def stop(side: str, cluster: Cluster) -> float:
    now = time.monotonic()
    member(cluster, side).node.run("systemctl", "stop", "--no-block", member(cluster, side).unit)
    return now


def start(side: str, cluster: Cluster) -> None:
    member(cluster, side).start_soon()


def awaits(side: str, cluster: Cluster) -> None:
    """The other one's unit lives on, out of service, and says whom it waits for, and why its rank ended."""
    waiting, gone = member(cluster, other(side)), member(cluster, side)
    wait_for(lambda: waiting.phase() == "awaiting-peers", 20, "the other node to wait")
    wait_for(lambda: gone.node.fabric_address in waiting.status_text(), 20, "it to say for whom")
    assert waiting.show("ActiveState") in ("active", "activating")
    report = waiting.report()
    assert report is not None
    assert report.last_cause_code == "peer-stopped", report.last_cause
    assert not waiting.rank()


def reboot(side: str, cluster: Cluster) -> float:
    now = time.monotonic()
    member(cluster, side).node.run("systemctl", "reboot", check=False)
    return now


def wait_up(side: str, cluster: Cluster) -> None:
    member(cluster, side).node.wait_booted()


def cut_power(side: str, cluster: Cluster) -> float:
    now = time.monotonic()
    member(cluster, side).node.powercut(lose_unsynced=True, stay_off=True)
    return now


def power_on(side: str, cluster: Cluster) -> None:
    member(cluster, side).node.power_on()
    wait_up(side, cluster)


def cut_power_of_all(cluster: Cluster) -> float:
    now = time.monotonic()
    for spark in cluster.members:
        spark.node.powercut(lose_unsynced=True, stay_off=True)
    return now


def power_on_all(cluster: Cluster) -> None:
    for spark in cluster.members:
        spark.node.power_on()
    for spark in cluster.members:
        spark.node.wait_booted()


def cut(cluster: Cluster) -> float:
    now = time.monotonic()
    cluster.worker.node.fabric.cut()
    return now


def blackhole(cluster: Cluster) -> float:
    now = time.monotonic()
    cluster.worker.node.fabric.blackhole()
    return now


def lose(percent: int, cluster: Cluster) -> float:
    cluster.worker.node.fabric.lose(percent)
    return time.monotonic()


def clear(cluster: Cluster) -> None:
    cluster.worker.node.fabric.clear()


def both_wait(cluster: Cluster) -> None:
    """Nobody runs a rank, nobody has given up. The agents end later than their ranks."""
    for spark in cluster.members:
        assert not spark.rank(), f"{spark.node.name} runs a rank"
        wait_for(partial(_ended, spark), 5, "the end of an agent")
        state = spark.show("ActiveState")
        assert state in ("active", "activating"), f"{spark.unit} is {state}"


def _ended(spark: SparkdNode) -> bool:
    return spark.show("ActiveState") != "deactivating"


def differ(side: str, difference: differences.Difference, cluster: Cluster) -> None:
    """Changed on a node that was stopped, which is started: both sides say what differs, and none runs a rank."""
    awaits(side, cluster)
    difference.make(member(cluster, side))
    start(side, cluster)
    for spark in cluster.members:
        difference.await_status(spark)
    both_wait(cluster)


def undo(side: str, difference: differences.Difference, cluster: Cluster) -> None:
    difference.undo(member(cluster, side))
