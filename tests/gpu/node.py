"""A node on this host: network, mounts, processes, /run, /etc, /var/lib and dockerd of its own, and one GPU.

Outside, `Node` starts it and calls its functions; inside, this module serves these calls as a program,
a line of JSON each.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import machine
from .units import Agent, Guard
from .view import View

FOLDER = Path("/opt/sparkd-gpu/nodes")
CARD, MTU = "enp1s0f0np0", 9000
INIT = machine.HOME / "docker/bin/docker-init"
OWN = ("etc", "var/lib", "var/log")
"""Folders that begin as a copy of the host's."""
EMPTY = ("run", "dev/shm")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "kmsg", "fuse", "net/tun")


class Node:
    """Rank `index` of the pair. Raises RuntimeError where a call fails inside."""

    def __init__(self, index: int, folder: Path) -> None:
        self.index, self.address = index, f"10.0.0.{index + 1}"
        self.folder = folder / f"node{index}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.group = Path("/sys/fs/cgroup", *(("unified",) if machine.ON_CPU else ()), f"node{index}")
        self._remove_group()  # of a node that was cut off
        (self.group / "init").mkdir(parents=True)
        kinds = ("--net", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child")
        # The cgroup namespace begins where its maker is: at the node's own group, whose processes are in a child.
        inner = 'echo 0 >"$0/init/cgroup.procs"; exec "$@"'
        enter = f'echo 0 >"$0/cgroup.procs"; exec unshare --cgroup sh -c {shlex.quote(inner)} "$0" "$@"'
        program = (INIT, "-s", "--", sys.executable, "-m", "tests.gpu.node", str(index), str(self.folder))
        self._process = subprocess.Popen(
            ["sh", "-c", enter, str(self.group), "unshare", *kinds, *map(str, program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.pid = int(str(self._answer()))
        """Of a process in its namespaces, as the host counts."""
        self.view = View(Path(f"/proc/{self.pid}/root"), self.pid, self.group.name)

    def call(self, name: str, *values: object) -> object:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, *values]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"node {self.index} is gone")
        good, value = json.loads(line)
        if not good:
            raise RuntimeError(f"node {self.index}: {value}")
        return value

    def link(self, state: str) -> None:
        """Its end of the cable: `up` or `down`, which the other end sees as no carrier."""
        machine.run(*self.view.enter("net"), *machine.IP, "link", "set", CARD, state)

    def end(self) -> None:
        """All its processes and mounts with it."""
        self._process.kill()
        self._process.wait()
        self._remove_group()

    def _remove_group(self) -> None:
        if not self.group.exists():
            return
        (self.group / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + 20
        while "populated 1" in (self.group / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        for folder, _, _ in os.walk(self.group, topdown=False):
            Path(folder).rmdir()


def join(nodes: list[Node]) -> None:
    """A cable between the two."""
    head, worker = nodes
    ends = [["name", CARD, "mtu", MTU, "netns", node.pid] for node in (head, worker)]
    machine.run(*machine.IP, "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
    for node in nodes:
        inside = (*node.view.enter("net"), *machine.IP)
        machine.run(*inside, "address", "add", f"{node.address}/24", "dev", CARD)
        for card in ("lo", CARD):
            machine.run(*inside, "link", "set", card, "up")


class FarAgent:
    """The unit of a node, as `Agent`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.call("start")

    pid = property(lambda self: self._read("pid"))
    over = property(lambda self: self._read("over"))
    result = property(lambda self: self._read("result"))
    ended = property(lambda self: self._read("ended"))
    ready_at = property(lambda self: self._read("ready_at"))

    def kill(self) -> float:
        return float(str(self._node.call("kill")))

    def reload(self) -> subprocess.CompletedProcess[str]:
        code, text = json.loads(str(self._node.call("reload")))
        return subprocess.CompletedProcess((), code, text, "")

    def exhaust(self) -> None:
        self._node.call("exhaust")

    def stop(self) -> float:
        return float(str(self._node.call("stop")))

    def _read(self, name: str) -> object:
        return self._node.call("read", name)


# -- inside


class Inside:
    """What may be called."""

    def __init__(self, index: int, folder: Path) -> None:
        self._index, self._folder = index, folder
        self._agent: Agent | None = None

    def docker(self) -> str:
        return machine.start_docker()

    def image(self) -> None:
        machine.make_image()

    def configure(self, addresses: list[str], key: str, extra: str, env: dict[str, str]) -> None:
        machine.write_configuration(f"[cluster]\nnodes = {json.dumps(addresses)}\n{extra}", env=env, nodes=2)
        path = Path("/etc/sparkd/cluster.key")
        path.touch(0o600)
        path.write_text(f"{key}\n")

    def start(self) -> None:
        if self._agent is None:
            self._guard = Guard(self._folder / "guard.log")
        role = "worker" if self._index else "head"
        self._agent = Agent(self._folder / "agent.log", os.environ, f"sparkd-{role}.service")

    def read(self, name: str) -> object:
        return getattr(self._agent, name)

    def kill(self) -> float:
        assert self._agent is not None
        return self._agent.kill()

    def reload(self) -> str:
        assert self._agent is not None
        done = self._agent.reload()
        return json.dumps([done.returncode, done.stdout + done.stderr])

    def exhaust(self) -> None:
        assert self._agent is not None
        self._agent.exhaust()

    def stop(self) -> float:
        assert self._agent is not None
        return self._agent.stop()

    def keep_body(self) -> str:
        """Keep the rank's container for `run_bare`. Returns its script."""
        self._body = machine.keep_body()
        return machine.BARE_SCRIPT.read_text()

    def run_bare(self) -> None:
        machine.run_bare(self._body)

    def end_bare(self) -> None:
        machine.end_bare()


def settle_in(index: int, folder: Path) -> int:
    """Mounts and name of the node. Returns this process's number on the host."""
    number = int(os.readlink("/proc/self"))  # of the host's /proc, the last time
    machine.run("mount", "--make-rprivate", "/")
    own = FOLDER / str(index)
    for name in OWN:
        if not (own / name).exists():  # a node that starts again keeps its disk
            left_out = shutil.ignore_patterns("docker", "containerd")
            shutil.copytree(Path("/", name), own / name, symlinks=True, ignore=left_out)
        machine.run("mount", "--bind", own / name, Path("/", name))
    _make_devices(index)
    machine.run("mount", "-t", "proc", "proc", "/proc")
    machine.run("mount", "-t", "sysfs", "sysfs", "/sys")  # with the cards of this network
    machine.run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    for name in EMPTY:
        machine.run("mount", "-t", "tmpfs", "tmpfs", Path("/", name))
    socket.sethostname(f"spark{index + 1}")
    return number


def _make_devices(index: int) -> None:
    """A /dev of its own, with one GPU: NVML and CUDA see those alone whose device they can open."""
    own = Path("/mnt")
    machine.run("mount", "-t", "tmpfs", "tmpfs", own)
    gpus = sorted(path for path in Path("/dev").glob("nvidia[0-9]*"))
    wanted = [Path("/dev", name) for name in DEVICES] + gpus[index : index + 1]
    wanted += [path for pattern in ("nvidiactl", "nvidia-uvm*", "nvidia-caps/*") for path in Path("/dev").glob(pattern)]
    for path in filter(Path.exists, wanted):
        target = own / path.relative_to("/dev")
        target.parent.mkdir(exist_ok=True)
        about = path.stat()
        os.mknod(target, about.st_mode, about.st_rdev)
        target.chmod(about.st_mode & 0o777)
    for name in ("fd", "stdin", "stdout", "stderr"):
        (own / name).symlink_to(os.readlink(f"/dev/{name}"))
    for name in ("shm", "pts"):
        (own / name).mkdir()
    machine.run("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts", own / "pts")
    machine.run("mount", "--move", own, "/dev")


def serve(index: int, folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps([True, settle_in(index, folder)]) + "\n")
    inside = Inside(index, folder)
    for line in sys.stdin:
        name, *values = json.loads(line)
        act: Callable[..., object] = getattr(inside, name)
        try:
            answer = [True, act(*values)]
        except Exception as error:  # reported outside
            answer = [False, f"{name}: {error!r}"]
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
