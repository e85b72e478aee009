"""Nodes under siege: booted, with vLLM or its stand-in, strangers' things on them, and clients that stream."""

from __future__ import annotations

import json
import secrets
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.bed import Bed, BedError, Node, client
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode

PROGRAMS = Path(__file__).parent / "programs"
EATER = Path(__file__).parents[1] / "bed/programs/eater.py"
STRANGER = 64000
"""The uid of a user who may do nothing here."""
STAND_IN_BYTES, ENGINE_BYTES = 3 << 30, 6 << 30
"""Of a node."""
STAND_IN_SECONDS, ENGINE_SECONDS = 20, 60
"""Of a start: preflight, docker, and 1 s of load, or vLLM's own 13 to 47 s."""
KEY_FILE = "/etc/sparkd/api.key"
RECIPE = """\
schema: 1
name: siege-{name}
extends: tiny-cpu-pair
args: {{max-num-seqs: {seqs}}}
"""
STAND_IN = """\
schema: 1
name: siege-{name}
extends: tiny-cpu-pair
model: {{path: siege, served_name: tiny, random_weights: true}}
image: {{entrypoint: [/models/siege/vllm, serve]}}
args: {{logprobs-mode: raw_logits, max-num-seqs: {seqs}}}
env: {{VLLM_CPU_KVCACHE_SPACE: null}}
memory_bytes: 314572800
"""
"""Smoke requests no log-probabilities of an engine whose mode is of logits."""
HEAD = """\
[engine]
recipe = "siege-a"
[engine.secrets]
VLLM_API_KEY = "/etc/sparkd/api.key"
[memory]
headroom_gib = 0.2
floor_mib = 256
[supervise]
stall_seconds = 30
proven_seconds = 2 # else the first five faults of a siege are the last ones that sparkd starts again after
"""
WORKER = """\
[engine.secrets]
VLLM_API_KEY = "/etc/sparkd/api.key"
[memory]
headroom_gib = 0.2
floor_mib = 256
"""
CLOCK = """\
[Service]
Environment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME_TIMESTAMP_FILE=/run/siege-clock
Environment=FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_CACHE_DURATION=1
"""
"""The nodes have one kernel, whose clock is this machine's: an agent's own clock jumps."""
PLANTED = f"""\
chmod 1777 /dev/shm; mount -o remount,size=1500m /dev/shm
cat >/run/stranger.py <<'END'
import ctypes, mmap, os, sys, time
os.getuid() and ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore")
held = [mmap.mmap(os.open(path, os.O_RDWR | os.O_CREAT), 4096) for path in sys.argv[1:] if not os.truncate(
    os.open(path, os.O_RDWR | os.O_CREAT, 0o600), 4096)]
time.sleep(1e6)
END
python3 - <<'END'
import os
for uid, segment in (({STRANGER}, "psm_aaaa0001"), (0, "psm_aaaa0002")):
    if not os.fork():
        os.setsid()
        os.setgid(uid)
        os.setuid(uid)
        null = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.execv("/usr/bin/python3", ["vllm", "/run/stranger.py", "/dev/shm/" + segment])
END
setpriv --reuid={STRANGER} --regid={STRANGER} --clear-groups sh -c 'echo kept >/dev/shm/psm_aaaa0003'
docker inspect foreign >/dev/null 2>&1 ||
  docker run -d --name foreign --restart=always sparkd-test/busybox:1 sleep 1000000 >/dev/null
mkdir -p /srv/models/foreign /var/lib/foreign
for file in /srv/models/foreign/model.safetensors /var/lib/foreign/psm_aaaa0004; do echo kept >$file; done
"""
"""A container, files, a user's engine, one of root's that holds a segment, and segments with an engine's names."""
STREAM = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 40, "stream": True})


@dataclass
class Outages:
    """Longer than a second without a token."""

    count: int = 0
    seconds: float = 0.0
    active_seconds: float = 0.0
    """Of them those in which the head's unit was active, so that its state promised tokens."""
    last_token: float = field(default_factory=time.monotonic)

    def token(self) -> None:
        now, before = time.monotonic(), self.last_token
        self.last_token = now
        if now - before > 1.0:
            self.count += 1
            self.seconds += now - before

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - self.last_token

    def __str__(self) -> str:
        return f"{self.count} outages, {self.seconds:.0f} s without tokens, {self.active_seconds:.0f} s of them active"


class World:
    def __init__(self, bed: Bed, package: Path, second: Path, nodes: int = 2, *, vllm: bool = False) -> None:
        self.key = secrets.token_hex(16)
        self.outages = Outages()
        self._noted_at = time.monotonic()
        self.persons: list[str] = []
        """What was done by hand, because sparkd advised it."""
        self.packages, self._vllm = (package, second), vllm
        self.node_bytes = ENGINE_BYTES if vllm else STAND_IN_BYTES
        self.start_seconds = ENGINE_SECONDS if vllm else STAND_IN_SECONDS
        booted = [bed.node(f"spark{index + 1}", memory=self.node_bytes, package=package) for index in range(nodes)]
        for node in booted:
            node.power_on()
        for node in booted:
            node.wait_up()
        self.cluster = Cluster.of(booted)
        for member in self.cluster.members:
            self._furnish(member)
        self.cluster.configure()
        self.cluster_key = booted[0].read("/etc/sparkd/cluster.key").split()[0]
        nodes_line = self.cluster.following().splitlines()[1]
        self._texts = (f"[cluster]\n{nodes_line}\n{HEAD}", self.cluster.following(WORKER))
        for member in self.cluster.members:
            member.configure(self.text(member))
            self.plant(member)
        self._over = threading.Event()
        self._clients = [threading.Thread(target=self._stream, daemon=True) for _ in range(2)]

    def _furnish(self, member: SparkdNode) -> None:
        node = member.node
        node.sh("cp -r /srv/models/tiny /srv/models/siege; mkdir -p /etc/sparkd/recipes")
        node.put(PROGRAMS / "vllm", "/srv/models/siege/vllm")
        node.put(EATER, "/root/eater.py")
        for number, package in enumerate(self.packages):
            node.put(package, f"/root/siege-{number}.deb")
        for name, seqs in (("a", 8), ("b", 9)):
            recipe = (RECIPE if self._vllm else STAND_IN).format(name=name, seqs=seqs)
            node.write(f"/etc/sparkd/recipes/siege-{name}.yaml", recipe)
        node.sh(f"umask 077; cat >{KEY_FILE}", input=self.key)
        node.write(f"/etc/systemd/system/{member.unit}.service.d/siege.conf", CLOCK)

    def plant(self, member: SparkdNode) -> None:
        """Also after each boot."""
        member.node.sh(PLANTED)

    def revive(self, member: SparkdNode) -> None:
        """What else may still be switched off."""
        if not member.node.init:
            member.node.power_on()
            member.node.wait_booted()
            self.plant(member)

    def text(self, member: SparkdNode) -> str:
        return self._texts[member is not self.cluster.head]

    def begin(self) -> None:
        self.cluster.start()
        wait_for(self.serving, 240 + self.start_seconds, f"all to serve\n{self.cluster.describe()}")
        self.outages.last_token = time.monotonic()
        for thread in self._clients:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._clients:
            thread.join(30)

    def serving(self) -> str:
        """The ranks, with their agents; empty unless all say that they serve and hear each other, and tokens come."""
        ranks = []
        for member in self.cluster.members:
            report = member.report()
            if report is None or report.phase.value != "serving" or report.pid != member.main_pid():
                return ""
            if any(peer.contact.value != "answers" for peer in report.peers):
                return ""
            ranks.append(f"{report.rank_id} {report.pid}")
        return " ".join(ranks) if self._complete(self.cluster.head.node) else ""

    def note_activity(self) -> None:
        """Count the time since the last call as active without tokens, where both are so now."""
        now, before = time.monotonic(), self._noted_at
        self._noted_at = now
        if self.outages.silent_seconds > 1.0 and self._is_active():
            self.outages.active_seconds += now - before

    def _is_active(self) -> bool:
        head = self.cluster.head
        with suppress(BedError, OSError):
            return bool(head.node.init) and head.show("ActiveState") == "active"
        return False

    def tails(self, lines: int) -> str:
        """The last lines of each node's journal, sparkd's by themselves first."""
        texts = []
        for member in self.cluster.members:
            for name, options in (("sparkd", ("--unit=sparkd-*",)), ("all", ())):
                with suppress(BedError, OSError):
                    shown = member.node.run("journalctl", "--no-pager", f"--lines={lines}", *options).stdout
                    texts.append(f"== {member.node.name}, {name}\n{shown}")
        return "\n".join(texts)

    def _complete(self, node: Node) -> bool:
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 2})
        try:
            answer = node.http(8000, "/v1/completions", method="POST", body=body, headers=self._headers(), timeout=5)
        except OSError:
            return False
        return answer.status == 200

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}

    def _stream(self) -> None:
        node = self.cluster.head.node
        lines = [f"{name}: {value}" for name, value in {**self._headers(), "Content-Length": len(STREAM)}.items()]
        request = "\r\n".join(["POST /v1/completions HTTP/1.1", "Host: spark1", *lines, "", STREAM]).encode()
        while not self._over.is_set():
            try:
                with closing(client.connect(node.space.keeper.pid, node.address, 8000, 3)) as connection:
                    connection.sendall(request)
                    while piece := connection.recv(4096):
                        if b"data: {" in piece:
                            self.outages.token()
            except (OSError, BedError):
                time.sleep(0.3)
