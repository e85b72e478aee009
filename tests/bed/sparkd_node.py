"""A node of the bed with sparkd on it: installed, configured, started, queried."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .command import BedError
from .node import Node
from .processes import Identity, wait_for

if TYPE_CHECKING:
    from sparkd.base.state.launch_history import LaunchHistory
    from sparkd.base.status.model import NodeReport

HEAD, WORKER = "sparkd-head", "sparkd-worker"
RANK = r"^VLLM::|vllm serve"
"""Every process of a rank, from its container's first on."""
SERVING_SECONDS = 240.0
"""The tiny engine is twelve seconds of work for one core; a machine under load takes longer."""

CONFIGURATION = """\
[engine]
recipe = "tiny-cpu"
"""


def complete(node: Node, timeout: float = 30) -> bool:
    """Whether the endpoint makes a token."""
    try:
        answer = node.post(8000, "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 4}, timeout)
    except OSError:
        return False
    return answer.status == 200 and json.loads(answer.body)["usage"]["completion_tokens"] >= 1


@dataclass(frozen=True)
class SparkdNode:
    node: Node
    unit: str = HEAD

    def install(self, package: Path) -> None:
        self.node.put(package, f"/root/{package.name}")
        self.node.run("apt-get", "install", "--yes", "--no-install-recommends", f"/root/{package.name}", timeout=300)

    def configure(self, text: str = CONFIGURATION) -> None:
        self.node.write("/etc/sparkd/sparkd.toml", text)
        self.node.run("sparkd", "units", "install")

    def start(self) -> None:
        """Returns once it serves; else what the journal says."""
        if self.node.run("systemctl", "start", self.unit, check=False, timeout=SERVING_SECONDS).returncode:
            raise BedError(self.node.journal(self.unit, "--lines=60"))

    def start_soon(self) -> None:
        """Returns at once."""
        self.node.run("systemctl", "start", "--no-block", self.unit)

    @contextmanager
    def starting(self) -> Iterator[subprocess.Popen[str]]:
        """`systemctl start` under way."""
        command = self.node.entered("systemctl", "start", self.unit)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            yield process

    def stop(self, timeout: float = 60) -> None:
        self.node.run("systemctl", "stop", self.unit, timeout=timeout)

    def show(self, name: str, unit: str = "") -> str:
        return self.node.run("systemctl", "show", "--value", "--property", name, unit or self.unit).stdout.strip()

    def active(self) -> bool:
        return self.show("ActiveState") == "active"

    def status_text(self) -> str:
        return self.show("StatusText")

    def main_pid(self) -> int:
        return int(self.show("MainPID"))

    def exit_status(self, unit: str = "") -> int:
        return int(self.show("ExecMainStatus", unit))

    def serves(self) -> bool:
        return self.active() and complete(self.node)

    def await_serving(self, timeout: float = SERVING_SECONDS) -> None:
        """Without help: nothing is started here."""
        wait_for(self.serves, timeout, f"{self.node.name} to serve; it is at {self.status_text()!r}")

    def forget_failures(self) -> None:
        """Faults that tests cause are not the plan's. The current launch is forgotten too: its end is not counted.

        A good start is recorded soon after it serves: that would bring back what was read before.
        """
        if self.phase() == "serving":
            wait_for(self._start_is_recorded, 10, "the good start to be recorded")
        self.node.run("rm", "-f", "/var/lib/sparkd/launch-history.json")

    def failures(self) -> dict[str, int]:
        """By the launch history: how often in a row, by plan digest."""
        return self._history().failures

    def _start_is_recorded(self) -> bool:
        boots = self._history().boots
        return not boots or boots[-1].phase == "serving"

    def _history(self) -> LaunchHistory:
        from sparkd.base.state.launch_history import FILE, LaunchHistory

        text = self.node.run("cat", FILE.path, check=False).stdout
        return FILE.decode(text.encode()) if text else LaunchHistory()

    def oom_kills(self) -> int:
        """Processes that the kernel has killed for memory, on the whole machine."""
        return int(self.node.sh("grep -w oom_kill /proc/vmstat").stdout.split()[1])

    def journal_since(self, cursor: str) -> str:
        return self.node.journal(self.unit, f"--after-cursor={cursor}")

    def ends_since(self, cursor: str) -> list[str]:
        """The agent's last line of each life that failed, such as `code=14 ... reason="..."`."""
        return re.findall(r"^agent\.run\.failed (.*)$", self.journal_since(cursor), re.MULTILINE)

    def engine_seconds(self, cursor: str) -> float | None:
        """How long the engine took by itself to its first completion, the last time that it did."""
        took = re.findall(r"^engine\.readiness\.reached seconds=([\d.]+)", self.journal_since(cursor), re.MULTILINE)
        return float(took[-1]) if took else None

    def report(self) -> NodeReport | None:
        """As the agent last wrote it; None where there is none, or where the node is off."""
        from sparkd.base.status.model import parse  # needs the project's environment, which people's verbs do without

        return parse(self.node.run("cat", "/run/sparkd/report.json", check=False).stdout) if self.node.init else None

    def phase(self) -> str:
        """Empty where there is no report."""
        report = self.report()
        return report.phase.value if report else ""

    def rank(self) -> list[Identity]:
        """The processes of the rank that runs here."""
        return self.node.found(RANK)

    def cursor(self) -> str:
        """The journal's end."""
        shown = self.node.run("journalctl", "--lines=0", "--show-cursor").stdout
        return shown.rpartition("-- cursor: ")[2].strip()

    def containers(self) -> list[str]:
        listed = self.node.run("docker", "ps", "--all", "--format", "{{.Names}}", "--filter", "label=io.sparkd.role")
        return listed.stdout.split()

    def pid(self, pattern: str) -> int:
        """The one process of the engine, as the node numbers it, whose command line the pattern is found in."""
        (found,) = self.node.pids(pattern)
        return found

    def leftovers(self) -> list[str]:
        """Engine processes without a container, and segments that nobody has mapped: what an ended engine leaves."""
        listed = self.node.sh("find /dev/shm -type f -printf '%i %f\\n'").stdout.splitlines()
        # By inode: a semaphore is mapped under the name that it had before it was given its own.
        mapped = self.node.sh("cat /proc/[0-9]*/maps 2>/dev/null | grep /dev/shm/ | awk '{print $5}' | sort -u").stdout
        orphans = [line.split()[1] for line in listed if line.split()[0] not in mapped.split()]
        return orphans + ([] if self.containers() else [str(pid) for pid in self.node.pids(RANK)])

    def snapshot(self) -> dict[str, str]:
        """What a bystander must not change: processes of the engine, containers, files of sparkd's, segments."""
        engine = self.node.pids(r"VLLM::|vllm serve|sparkd run")
        return {
            "engine": " ".join(map(str, engine)),
            "containers": self.node.run("docker", "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.State}}").stdout,
            "files": self.node.sh(
                "ls -l --time-style=full-iso /etc/sparkd /var/lib/sparkd /run/sparkd/private/launch.sh"
            ).stdout,
            "segments": self.node.sh("ls /dev/shm").stdout,
            "sysctl": self.node.sh("cat /proc/sys/vm/drop_caches").stdout,
        }
