"""Two machines with sparkd on them, as the nodes of one cluster, two cables between them."""

import json
import secrets
from dataclasses import dataclass
from typing import Any

from tests.bed.qemu.machine import Machine

BOND, MTU = "bond0", 9000
CONFIGURATION = """\
[cluster]
nodes = ["10.0.0.1", "10.0.0.2"]
[engine]
recipe = "gpu-pair"
"""
RECIPE = """\
schema: 1
name: gpu-pair
description: As if there were GPUs, for only then RDMA matters
source: tests
extends: tiny-cpu-pair
container:
  gpus: all
  privileged: true
"""
LAUNCH = """
import sys
from pathlib import Path
sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.agent.actions.files import write
from sparkd.base.state.launch_history import FILE, LaunchHistory
boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
history = LaunchHistory().record_launch("0" * 64, boot, {})
write(Path(FILE.path), FILE.encode(history), FILE.mode, durable=True)
Path("/var/lib/sparkd/unsynced").write_text("x")
"""
"""What the agent writes down just before it starts the rank's container."""
UNIT = "sparkd-head"
PREFLIGHT_SECONDS = 240.0
"""40 s where it has a core to itself."""


@dataclass(frozen=True)
class Checked:
    """The verdict of one check."""

    level: str
    reason: str
    hint: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Pair:
    head: Machine
    worker: Machine

    @property
    def both(self) -> tuple[Machine, Machine]:
        return self.head, self.worker

    def configure(self) -> None:
        key = secrets.token_hex(32)
        for machine in self.both:
            machine.write("/etc/sparkd/recipes/gpu-pair.yaml", RECIPE)
            machine.write("/etc/sparkd/sparkd.toml", CONFIGURATION)
            machine.sh(f"umask 077 && echo {key} > /etc/sparkd/cluster.key")

    def join(self, machine: Machine) -> None:
        """After each boot: a bond of the two cables, with the address."""
        # Their driver may come after the guest agent.
        cables = "[ -e /sys/class/net/eth0 ] && [ -e /sys/class/net/eth1 ]"
        machine.sh(f"timeout 60 sh -c 'until {cables}; do sleep 0.2; done'")
        machine.sh(
            f"ip link add {BOND} type bond mode active-backup miimon 100"
            f" && ip link set eth0 master {BOND} && ip link set eth1 master {BOND}"
            f" && ip link set {BOND} mtu {MTU} up"
        )
        self.give_address(machine)

    def address(self, machine: Machine) -> str:
        return f"10.0.0.{self.both.index(machine) + 1}"

    def give_address(self, machine: Machine) -> None:
        machine.run("ip", "address", "replace", f"{self.address(machine)}/24", "dev", BOND)

    def cable(self, port: int, is_in: bool) -> None:
        """Both ends of it: with one alone the other machine would continue to send into it."""
        for machine in self.both:
            machine.cable(port, is_in)

    def pings(self) -> bool:
        """Whether a datagram of the whole MTU gets through."""
        ping = ("ping", "-c", "1", "-W", "5", "-M", "do", "-s", str(MTU - 28), "10.0.0.2")
        return self.head.run(*ping, check=False).returncode == 0

    def preflight(self, env: str = "") -> dict[str, Checked]:
        """A dry run on the head; `env` is TOML of [engine.env]."""
        self.head.write("/etc/sparkd/conf.d/50-test.toml", f"[engine.env]\n{env}\n")
        done = self.head.run("sparkd", "preflight", "--dry-run", "--json", check=False, timeout=PREFLIGHT_SECONDS)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)["checks"]
        return {one["id"]: Checked(one["level"], one["reason"], one["hint"], one["facts"]) for one in found}
