"""The faults of a siege: what is done to a node, what heals it, and the causes that sparkd may name for it.

One that finds no victim, as on a node that is off, does nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tests.bed import victims
from tests.bed.fabric import Fabric
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode

from .world import STRANGER, World

Act = Callable[[World, SparkdNode, int], object]
KILLED = ("killed-from-outside", "engine-error", "engine-ended")
DOCKER = ("docker-restarted", "docker-hung", "launch-failed", "engine-stopped", "killed-from-outside")
MEMORY = ("memory-guard", "memory-taken", "kernel-oom", "killed-from-outside", "agent-killed", "docker-restarted")
HANGS = ("engine-stalled",)
SLOW = ("launch-failed", "docker-hung", "load-stalled", "system-error", "agent-killed", "not-ready")
PEER = (
    "peer-failed", "peer-stopped", "peer-lost", "peer-silent", "stop-requested", "plan-outdated", "engine-ended",
)  # fmt: skip
"""What any fault may come to on the other node, and what follows an edit of an earlier burst, at the next start."""


def nothing(world: World, member: SparkdNode, number: int) -> None:
    pass


class Fault(NamedTuple):
    name: str
    inject: Act
    causes: tuple[str, ...] = ()
    """Beside PEER."""
    heal: Act = nothing
    numbers: tuple[int, ...] = (0,)
    """One is drawn: seconds until it is healed, or another choice that the fault makes."""
    lasts: bool = False
    """Whether the number is seconds."""
    heads_only: bool = False


def send(number: int, victim: Callable[[SparkdNode], int], _: World, member: SparkdNode, __: int) -> None:
    member.node.kill(victim(member), number)


def first(pattern: str) -> Callable[[SparkdNode], int]:
    return lambda member: member.node.pids(pattern)[0]


def command(*argv: str) -> Act:
    return lambda _, member, __: member.node.run(*argv, timeout=60)


def shell(line: str, check: bool = False) -> Act:
    """`{n}`: the number."""
    return lambda _, member, number: member.node.sh(line.replace("{n}", str(number)), check=check, timeout=60)


def as_stranger(program: str) -> Act:
    words = f"setpriv --reuid={STRANGER} --regid={STRANGER} --clear-groups timeout 40 python3 -c '{program}'"
    return shell(f"setsid {words} >/dev/null 2>&1 &")


def cut_power(world: World, member: SparkdNode, number: int) -> None:
    thaw(world, member, number)
    member.node.powercut(lose_unsynced=bool(number % 2), stay_off=True)


def power_on(world: World, member: SparkdNode, _: int) -> None:
    member.node.power_on()
    member.node.wait_booted()
    world.plant(member)


def reboot(world: World, member: SparkdNode, _: int) -> None:
    thaw(world, member, 0)
    before = member.node._pid_one()
    member.node.run("systemctl", "reboot", check=False)
    wait_for(lambda: not before.alive, 120, "a reboot")


def thaw(_: World, member: SparkdNode, __: int) -> None:
    # A freeze that is under way ends behind its shell: once more.
    unfreeze = "fsfreeze --unfreeze /"
    member.node.sh(f"pkill -f '^sh .*[s]low-disk'; {unfreeze}; sleep 0.5; {unfreeze}", check=False, timeout=20)


def cable(act: Callable[[Fabric], None], world: World, member: SparkdNode, _: int) -> None:
    """A worker's, whose other end is the head."""
    act((world.cluster.worker if member is world.cluster.head else member).node.fabric)


def hog(world: World, member: SparkdNode, _: int) -> None:
    gib = 0.9 * world.node_bytes / (1 << 30)
    member.node.sh(f"setsid python3 /root/eater.py 0.5 {gib:g} >/dev/null 2>&1 &")


def edit(world: World, member: SparkdNode, number: int) -> None:
    """A good one, which counts at the next start of the head."""
    more = f"[engine.args]\nseed = {number}\n" if member is world.cluster.head else f"# {number}\n"
    member.node.write("/etc/sparkd/sparkd.toml", f"{world.text(member)}{more}")


def break_file(_: World, member: SparkdNode, __: int) -> None:
    member.node.write("/etc/sparkd/sparkd.toml", "[engine\nrecipe = ]\n")


def repair_file(world: World, member: SparkdNode, _: int) -> None:
    """And as its person, who starts what has ended by it."""
    edit(world, member, 0)
    if member.show("ActiveState") == "failed" and member.exit_status() == 78:
        world.persons.append(f"{member.unit}: 78")
        member.node.run("systemctl", "reset-failed", member.unit)
        member.start_soon()


def use(_: World, member: SparkdNode, number: int) -> None:
    name = "siege-" + "ab"[number]
    member.node.sh(f"setsid sparkd use {name} --drain 2s </dev/null >/run/siege-use 2>&1 &")


def await_use(_: World, member: SparkdNode, __: int) -> None:
    """It ends with the switch."""
    wait_for(lambda: not member.node.pids("sparkd use"), 120, "the switch")


def upgrade(_: World, member: SparkdNode, number: int) -> None:
    member.node.sh(f"dpkg --install /root/siege-{number}.deb && systemctl reload {member.unit}", check=False)


def reload(_: World, member: SparkdNode, __: int) -> None:
    member.node.run("systemctl", "reload", member.unit, check=False)


FORGE = """
import socket, syslog
for tag in ("sparkd-head", "sparkd-worker", "kernel"):
    syslog.openlog(tag, 0, syslog.LOG_KERN)
    for text in ("agent.run.failed code=17 cause=needs-person reason=forged", "NVRM: Xid (PCI:0000:01:00): 79, forged",
                 "Out of memory: Killed process 1 (VLLM::EngineCor)", "engine| (APIServer pid=1) EngineDeadError"):
        syslog.syslog(syslog.LOG_CRIT, text)
for path in ("/dev/kmsg", "/run/sparkd/report.json", "/run/sparkd/hands.lock"):
    try:
        open(path, "w").write("<2>NVRM: Xid (PCI:0000:01:00): 79, forged")
    except OSError:
        pass
"""
GARBAGE = """
import glob, os, re, socket, time
address = re.search("10[.]0[.]0[.][0-9]+", os.popen("ip -4 address show enp1s0f0np0").read())
for place in ((address and address[0] or "127.0.0.1", 29510), ("127.0.0.1", 29511)):
    held = []
    for number in range(150):
        try:
            one = socket.create_connection(place, 2)
            one.sendall(os.urandom(4096) if number % 2 else b"GET /report HTTP/1.1" + bytes([13, 10]) + b"X: y")
            held.append(one)
        except OSError:
            pass
    time.sleep(4)
"""
FILL = """
import os, time
file = open("/dev/shm/filled", "wb")
try:
    os.posix_fallocate(file.fileno(), 0, 1700 << 20)
except OSError:
    os.posix_fallocate(file.fileno(), 0, os.statvfs("/dev/shm").f_bavail * 4096 - 65536)
time.sleep(30)
"""
FULL = "fallocate -l $((($(stat -f -c %f /) - 4000) * 4096)) /var/full; dd if=/dev/zero of=/var/full2 bs=4k 2>/dev/null"
"""Also of the blocks that only root may use."""
SLOW_DISK = """
setsid sh -c 'for i in $(seq $(({n} * 2))); do fsfreeze -f /; sleep 0.4; fsfreeze -u /; sleep 0.1; done' \\
  slow-disk >/dev/null 2>&1 &
"""
"""What is written waits, up to 0.4 s each time."""
GUARD = "^sparkd-guard$"
ENGINE, CORE, WORKER = victims.main_of_engine, victims.engine_core, victims.worker
SECONDS, SHORT = (2, 5, 12, 35), (1, 3, 8)
CABLES: tuple[tuple[str, Callable[[Fabric], None], tuple[str, ...]], ...] = (
    ("cut", Fabric.cut, ("own-address-gone",)),
    ("swallows", Fabric.blackhole, HANGS),
    ("one-way", lambda fabric: fabric.swallow("oifname"), HANGS),
    ("other-way", lambda fabric: fabric.swallow("iifname"), HANGS),
    ("loses", lambda fabric: fabric.lose(15), HANGS),
)
FAULTS = (
    Fault("kill-agent", partial(send, signal.SIGKILL, victims.sparkd), ("agent-killed",)),
    Fault("kill-guard", partial(send, signal.SIGKILL, first(GUARD)), ("agent-killed",)),
    Fault("stop-guard", partial(send, signal.SIGSTOP, first(GUARD)), ("agent-killed",),
          partial(send, signal.SIGCONT, first(GUARD)), SECONDS, lasts=True),
    Fault("kill-engine", partial(send, signal.SIGKILL, ENGINE), KILLED),
    Fault("kill-core", partial(send, signal.SIGKILL, CORE), KILLED, heads_only=True),
    Fault("kill-rank", partial(send, signal.SIGKILL, WORKER), KILLED),
    Fault("term-engine", partial(send, signal.SIGTERM, ENGINE), (*KILLED, "engine-stopped")),
    Fault("stop-rank", partial(send, signal.SIGSTOP, WORKER), ("engine-stalled", "load-stalled", *KILLED),
          partial(send, signal.SIGCONT, WORKER), SECONDS, lasts=True),
    Fault("stop-agent", partial(send, signal.SIGSTOP, victims.sparkd), ("agent-killed",),
          partial(send, signal.SIGCONT, victims.sparkd), SECONDS, lasts=True),
    Fault("power-cut", cut_power, ("agent-killed",), power_on, (1, 4, 25), lasts=True),
    Fault("reboot", reboot, ("agent-killed",), power_on, (1,), lasts=True),
    *(Fault(f"cable-{name}", partial(cable, act), causes, partial(cable, Fabric.clear), SECONDS, lasts=True)
      for name, act, causes in CABLES),
    Fault("clock", shell("printf %+d {n} >/run/siege-clock"), (), numbers=(3600, -3600, 86400, -864000, 0)),
    Fault("disk-full", shell(FULL), SLOW, shell("rm -f /var/full*"), SHORT, lasts=True),
    Fault("disk-slow", shell(SLOW_DISK), SLOW, thaw, SHORT, lasts=True),
    Fault("disk-hangs", command("fsfreeze", "--freeze", "/"), SLOW, thaw, SHORT, lasts=True),
    Fault("kill-dockerd", partial(send, signal.SIGKILL, victims.dockerd), DOCKER),
    Fault("restart-docker", command("systemctl", "restart", "--no-block", "docker"), DOCKER),
    Fault("stop-dockerd", partial(send, signal.SIGSTOP, victims.dockerd), DOCKER,
          partial(send, signal.SIGCONT, victims.dockerd), SECONDS, lasts=True),
    Fault("kill-journald", command("systemctl", "kill", "--signal=KILL", "systemd-journald")),
    Fault("stop-journald", command("systemctl", "kill", "--signal=STOP", "systemd-journald"), ("agent-killed",),
          command("systemctl", "kill", "--signal=CONT", "systemd-journald"), SECONDS, lasts=True),
    Fault("hog", hog, MEMORY, shell("pkill -KILL -f /root/eater.py"), (6, 12), lasts=True),
    Fault("edit", edit, numbers=tuple(range(8))),
    Fault("broken-file", break_file, ("configuration",), repair_file, SECONDS, lasts=True),
    Fault("use", use, ("switch", "switch-failed"), await_use, numbers=(0, 1), heads_only=True),
    Fault("reload", reload),
    Fault("upgrade", upgrade, numbers=(0, 1)),
    Fault("forged-lines", as_stranger(FORGE)),
    Fault("garbage", as_stranger(GARBAGE)),
    Fault("filled-shm", as_stranger(FILL), (*SLOW, *KILLED),
          shell("pkill -KILL -u 64000 python3; rm -f /dev/shm/filled"), SHORT, lasts=True),
)  # fmt: skip
BY_NAME = {fault.name: fault for fault in FAULTS}
ROWLESS = ("power-cut", "disk-full", "disk-slow", "disk-hangs", "reboot")
"""After these a row of the history may be missing."""
SECONDARY = ("peer-failed", "peer-stopped", "peer-lost", "peer-silent")
"""Each refers to a node whose end has another cause."""
UNSEEN = (*ROWLESS, "stop-agent", *(f"cable-{name}" for name, *_ in CABLES))
"""After these no node may know more than that another one was silent."""
