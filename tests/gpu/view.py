"""A node as this program sees it: its files, its processes, its clients. By itself: this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import machine

CLIENTS, TOKENS = 16, 48 if machine.ON_CPU else 1000
STREAMS = Path(__file__).parents[1] / "bed/programs/streams.py"
QUIET_SECONDS = 2.0
_KINDS = {"mnt": "-m", "net": "-n", "pid": "-p", "uts": "-u", "ipc": "-i", "cgroup": "-C"}
_COMPLETION = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4})


@dataclass
class Streams:
    requests: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class View:
    root: Path = Path("/")
    pid: int = 0
    """Of a process in its namespaces; 0 where they are this program's."""
    group: str = ""
    """Its control group, the first word of the path."""

    @property
    def owner(self) -> Path:
        return self.root / "run/sparkd/owner.json"

    @property
    def report(self) -> Path:
        return self.root / "run/sparkd/report.json"

    def enter(self, *kinds: str) -> list[str]:
        """The words before a command that runs there; without kinds, in all its namespaces."""
        return ["nsenter", f"-t{self.pid}", *(_KINDS[one] for one in kinds or _KINDS), "--"] if self.pid else []

    def containers(self, *, stopped: bool = False) -> dict[str, str]:
        """Ids by name, those that run, or also those that do not."""
        return machine.containers(self.root, stopped=stopped)

    def processes(self, name: str) -> list[int]:
        """Whose name begins so, as the host counts."""
        pids = []
        for comm in Path("/proc").glob("[0-9]*/comm"):
            try:
                group = comm.with_name("cgroup").read_text().rpartition("::/")[2]
                if comm.read_text().startswith(name) and group.startswith(self.group):
                    pids.append(int(comm.parent.name))
            except OSError:
                continue
        return sorted(pids)

    def engine(self, name: str = "VLLM::EngineCor") -> int:
        """Its pid. Raises RuntimeError."""
        for pid in self.processes(name):
            return pid
        raise RuntimeError(f"no {name} runs")

    def complete(self) -> bool:
        words = ["curl", "-s", "-m", "10", "-H", "Content-Type: application/json", "-d", _COMPLETION]
        command = [*self.enter("net"), *words, "http://127.0.0.1:8000/v1/completions"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            return bool(json.loads(done.stdout)["usage"]["completion_tokens"])
        except (ValueError, KeyError):
            return False

    @contextmanager
    def streaming(self) -> Iterator[Streams]:
        """Clients that stream from now on; once left, what came of their requests."""
        streams = Streams()
        command = [*self.enter("net"), sys.executable, "-IBS", str(STREAMS), str(CLIENTS), str(TOKENS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            time.sleep(QUIET_SECONDS)
            try:
                yield streams
            finally:
                answer = json.loads(process.communicate("over\n", timeout=180)[0])
                streams.requests, streams.wrong = answer["requests"], answer["wrong"]


def read_json(path: Path) -> dict[str, object]:
    """Empty where it is absent."""
    try:
        kept: dict[str, object] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return kept
