"""A node of its own for one real `sparkd run`: namespaces, systemd's socket, a dockerd and an engine that stand in.

All of it is processes of one PID namespace, whose first one ends with the test process: nothing is left behind.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.integration.peer_alike import PeerAlike, listen_in, serving
from tests.tree import Tree
from tests.unit.nodes import KEY, until

from sparkd.agent.preflight.runner import IDS
from sparkd.base.status.model import Phase

OWN, PEER, REPORT_PORT, API_PORT = "10.77.0.1", "10.77.0.2", 29510, 8000
PROGRAMS = Path(__file__).parent / "programs"
AGENT = (sys.executable, "-I", "-c", "from sparkd.tools.cli.main import main; raise SystemExit(main())")
START_SECONDS = 60.0
WATCHDOG_SECONDS = 30.0
"""As in the units."""
MOUNTS = """
set -e
mount -t tmpfs -o mode=755 run /run
mkdir /run/etc /run/state /run/srv
for file in passwd group nsswitch.conf hosts ld.so.cache; do
  test ! -e /etc/$file || cp -L /etc/$file /run/etc
done
mount --bind /run/etc /etc
mount --bind /run/state /var/lib
mount --bind /run/srv /srv
mount -t tmpfs shm /dev/shm
mount -t sysfs sysfs /sys
cp /proc/meminfo /run/meminfo
mount --bind /run/meminfo /proc/meminfo
hostname spark1
ip link set lo up
echo up
exec cat
"""
UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--mount", "--net", "--uts", "--kill-child")
FABRIC = """\
link add fabric0 type veth peer name fabric0 netns {peer}
address add {own}/24 dev fabric0
link set fabric0 up
"""
FABRIC_OF_PEER = """\
address add {peer}/24 dev fabric0
link set fabric0 up
"""


class Systemd:
    """Receives what an agent sends to systemd, each message with its moment (monotonic)."""

    def __init__(self, path: Path) -> None:
        self.messages: list[tuple[float, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while message := self._socket.recv(8192):
            self.messages.append((time.monotonic(), message.decode()))

    def times_of(self, text: str) -> list[float]:
        return [moment for moment, message in self.messages if text in message.splitlines()]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class World:
    """One node. `pid` is that of its first process, in the namespace of the test."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.root = Path(f"/proc/{pid}/root")
        self.tree = Tree(self.root)
        self.lines: list[str] = []
        """Of the agent's journal."""
        self.agent: subprocess.Popen[bytes] | None = None
        self.peer: PeerAlike | None = None
        self.systemd = Systemd(self.root / "run/notify")
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, **options: object) -> subprocess.Popen[bytes]:
        """A process of this node, whose parent is a process outside with the same exit code."""
        inside = ("nsenter", f"--target={self.pid}", "--pid", "--mount", "--net", "--uts", "--", *command)
        process = subprocess.Popen(inside, **options)  # type: ignore[call-overload]  # as Popen's own
        self._started.append(process)
        return process  # type: ignore[no-any-return]  # as above

    def close(self) -> None:
        """Once the first process has ended, and all others with it."""
        for process in self._started:
            process.wait(START_SECONDS)
        self.systemd.close()

    def configure(self, text: str) -> None:
        self.tree.file("/etc/sparkd/sparkd.toml", text)
        self.tree.file("/etc/sparkd/cluster.key", f"{KEY.hex()}\n", 0o600)
        self.tree.safetensors("/srv/models/tiny/model.safetensors")

    def start_docker(self) -> None:
        program, engine = PROGRAMS / "dockerd_alike.py", PROGRAMS / "endpoint_alike.py"
        self.run(sys.executable, "-I", "-S", str(program), str(engine))
        until((self.root / "run/docker.pid").exists, START_SECONDS)

    def docker(self, method: str, path: str, body: object = None) -> object:
        """An answer of the stand-in."""
        connection = http.client.HTTPConnection("docker", timeout=START_SECONDS)
        connection.sock = socket.socket(socket.AF_UNIX)
        with connection.sock:
            connection.sock.connect(str(self.root / "run/docker.sock"))
            connection.request(method, path, json.dumps(body) if body is not None else None)
            return json.loads(connection.getresponse().read())

    @contextmanager
    def hung(self, *folders: str) -> Iterator[None]:
        """Each access to these folders hangs, until they are unmounted by force."""
        program = (sys.executable, "-I", "-S", str(PROGRAMS / "hung_mounts.py"), *folders)
        process = self.run(*program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
        process.communicate()
        assert process.returncode == 0

    def control(self, **wanted: object) -> list[str]:
        """Change how docker behaves; the calls that it has got."""
        answer = self.docker("POST", "/alike", wanted)
        assert isinstance(answer, dict)
        return list(answer["calls"])

    def containers(self) -> list[str]:
        listed = self.docker("GET", "/containers/json")
        assert isinstance(listed, list)
        return [container["Id"] for container in listed]

    def start_agent(self, *tracer: str, stdout: int = subprocess.PIPE, **variables: str) -> None:
        """`tracer`: a command that runs it. `variables`: more of its environment."""
        env = {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": "/run/notify",
            "WATCHDOG_USEC": f"{WATCHDOG_SECONDS * 1e6:.0f}",
            "INVOCATION_ID": "a" * 32,
            **variables,
        }
        self.agent = self.run(
            *tracer, *AGENT, "run", "--role", "head", env=env, stdout=stdout, stderr=subprocess.STDOUT
        )
        if self.agent.stdout is not None:
            threading.Thread(target=self._read, args=(self.agent.stdout,), daemon=True).start()

    def _read(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            self.lines.append(line.decode().rstrip("\n"))

    @property
    def agent_pid(self) -> int:
        """Or that of its tracer."""
        assert self.agent is not None
        return child_of(self.agent.pid)

    def terminate(self) -> None:
        """As `systemctl stop`."""
        os.kill(self.agent_pid, signal.SIGTERM)

    def exit_code(self, seconds: float) -> int:
        assert self.agent is not None
        return self.agent.wait(seconds)

    def read(self, path: str) -> dict[str, object]:
        """A JSON file; empty where there is none."""
        try:
            content: dict[str, object] = json.loads((self.root / path).read_text())
        except FileNotFoundError:
            return {}
        return content

    @property
    def report(self) -> dict[str, object]:
        return self.read("run/sparkd/report.json")

    @property
    def last_exit(self) -> dict[str, object]:
        end = self.read("var/lib/sparkd/launch-history.json").get("last_exit")
        return end if isinstance(end, dict) else {}

    def await_phase(self, *phases: str) -> None:
        self.until(lambda: self.report.get("phase") in phases, f"phase {' or '.join(phases)}")

    def await_line(self, *texts: str) -> None:
        """Until the journal has a line with one of these."""
        self.until(lambda: any(text in line for line in list(self.lines) for text in texts), f"a line: {texts}")

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """The processes of this node go before others of the machine: what is timed is not its load."""
        self._schedule(os.SCHED_RR, 1)
        try:
            yield
        finally:
            self._schedule(os.SCHED_OTHER, 0)

    def _schedule(self, policy: int, priority: int) -> None:
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended, or this machine does not allow it
                if os.readlink(process / "ns/pid") == own:
                    for thread in os.listdir(process / "task"):
                        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))

    def until(self, true: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
        """Wait for this, while the agent runs."""
        deadline = time.monotonic() + seconds
        while not true():
            assert self.agent is not None
            alive = self.agent.poll() is None and time.monotonic() < deadline
            assert alive, "\n".join((f"awaited: {what}; {self.report}", *self.lines))
            time.sleep(0.02)

    def lead_peer(self) -> None:
        """Take the part of the worker until its rank runs, which is when the head launches its own."""
        assert self.peer is not None
        self.until(lambda: self.report.get("plan_digest"), "a plan")
        self.peer.publish(plan_digest=self.report["plan_digest"])
        self.until(lambda: self.report.get("epoch"), "the head's call")
        self.peer.publish(phase=Phase.LOADING, epoch=self.report["epoch"])


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until(children.read_text, START_SECONDS)
    return int(children.read_text())


def configuration(*lines: str, recipe: str = "", pair: bool = False) -> str:
    """Of a node without checks: they are not the subject. `lines`: more of it."""
    recipe = recipe or ("tiny-cpu-pair" if pair else "tiny-cpu")
    nodes = json.dumps([OWN, PEER] if pair else [])
    return "\n".join(
        (
            f'engine.recipe = "{recipe}"',
            f"engine.args.port = {API_PORT}",
            f"cluster.nodes = {nodes}",
            f"preflight.skip = {json.dumps(IDS)}",
            "memory.load_guard = false",
            "memory.contiguous_gib = 0",
            'observe.listen = ""',
            *lines,
            "",
        )
    )


@contextmanager
def namespace(command: Sequence[str]) -> Iterator[int]:
    """The pid of a process that ends when its input does; as it starts, it prints a line."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(START_SECONDS)


@contextmanager
def world(*lines: str, pair: bool = False) -> Iterator[World]:
    """A configured node with its docker. `pair`: with another node on its fabric, which the test plays."""
    with ExitStack() as closing, ExitStack() as stack:
        outside = stack.enter_context(namespace((*UNSHARE, "sh", "-c", MOUNTS)))
        pid = int(Path(f"/proc/{outside}/task/{outside}/children").read_text())
        node = World(pid)
        closing.callback(node.close)
        if pair:
            other = stack.enter_context(namespace(("unshare", "--net", "sh", "-c", "echo up; exec cat")))
            _ip(pid, FABRIC.format(peer=other, own=OWN))
            _ip(other, FABRIC_OF_PEER.format(peer=PEER))
            node.peer = PeerAlike(PEER)
            stack.enter_context(serving(node.peer, listen_in(other, PEER, REPORT_PORT)))
        node.configure(configuration(*lines, pair=pair))
        node.start_docker()
        yield node


def _ip(pid: int, commands: str) -> None:
    command = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-")
    subprocess.run(command, input=commands, text=True, check=True)


assert shutil.which("nsenter") and shutil.which("unshare"), "util-linux is needed"
