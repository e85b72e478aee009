"""The steps of the trial. Each returns what was seen, and raises BedError where that is not what must be."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.bed.command import BedError
from tests.bed.processes import wait_for

from .disk import ENGINE, ENGINE_TAR
from .machine import Arm64Machine

UNIT = "sparkd-head"
STEP_SECONDS = 1200.0
"""A minute where it has a core to itself; the installation takes longest."""
RECIPE = f"""\
schema: 1
name: arm64
description: A stand-in for vLLM, of arm64
source: sparkd's own tests
extends: tiny-cpu
image: {{ref: "{ENGINE}"}}
env: {{VLLM_CPU_KVCACHE_SPACE: null}}
memory_bytes: 314572800
"""
SETTINGS = """\
[memory]
headroom_gib = 0.2
floor_mib = 256
"""
"""For a machine of 3 GiB."""
HEADER = b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
MODEL: dict[str, str | bytes] = {
    "config.json": '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 512}',
    "tokenizer.json": "{}",
    "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + bytes(4),
}
PROGRAM = "^/usr/bin/python3 .*vllm serve"
PY_SPY = "/usr/lib/sparkd/vendor/bin/py-spy"
NATIVE = """
import importlib, pathlib, sys
vendor = pathlib.Path("/usr/lib/sparkd/vendor")
sys.path[:0] = ["/usr/lib/sparkd/app", str(vendor)]
ours = f"cpython-{sys.version_info[0]}{sys.version_info[1]}-"
names = sorted(str(path.relative_to(vendor)).split(".")[0].replace("/", ".") for path in vendor.rglob("*.so")
               if "cpython-3" not in path.name or ours in path.name)
for name in names:
    importlib.import_module(name)
print(len(names), "modules:", *names)
"""
REQUEST = (
    "curl --silent --show-error --fail --max-time 60 http://127.0.0.1:8000/v1/completions"
    """ -H 'Content-Type: application/json' -d '{"model": "tiny", "prompt": "hello", "max_tokens": 1}'"""
)
CLIENT = f"while sleep 0.2; do {REQUEST} >/dev/null && echo answered || echo failed; done >/run/requests 2>&1"


@dataclass
class Trial:
    machine: Arm64Machine

    def steps(self) -> tuple[Callable[[], str], ...]:
        return (
            self.boot, self.install, self.load_modules, self.load_image, self.init, self.start, self.read_stack,
            self.kill_agent, self.kill_engine, self.reload, self.stop, self.purge,
        )  # fmt: skip

    def boot(self) -> str:
        """boot"""
        self.machine.boot()
        versions = "uname -mr; systemctl --version | head -1; docker version --format 'docker {{.Server.Version}}'"
        return self._sh(f"{versions}; python3 --version")

    def install(self) -> str:
        """dpkg --install"""
        self._sh("DEBIAN_FRONTEND=noninteractive dpkg --install /root/sparkd.deb")
        return self._sh("sparkd --version; dpkg-query --show --showformat '${Version} ${Architecture}' sparkd")

    def load_modules(self) -> str:
        """import of each compiled module"""
        self.machine.write("/root/native.py", NATIVE)
        return self._sh("python3 -IBS /root/native.py")

    def load_image(self) -> str:
        """docker import of the engine"""
        entrypoint = "--change 'ENTRYPOINT [\"vllm\",\"serve\"]' --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin'"
        self._sh(f"docker import {entrypoint} /{ENGINE_TAR} {ENGINE} && rm /{ENGINE_TAR}")
        return self._sh(f"docker image inspect --format '{{{{.Os}}}}/{{{{.Architecture}}}}' {ENGINE}")

    def init(self) -> str:
        """sparkd init"""
        self.machine.write("/etc/sparkd/recipes/arm64.yaml", RECIPE)
        self.machine.write("/etc/sparkd/conf.d/50-small.toml", SETTINGS)
        for name, content in MODEL.items():
            self.machine.write(f"/srv/models/tiny/{name}", content)
        shown = self._sh("sparkd init --recipe arm64 --yes").splitlines()
        return next(line for line in shown if line.startswith("check"))

    def start(self) -> str:
        """start until READY"""
        self._sh(f"systemctl start {UNIT}")
        self._await(self._serves, "the agent to serve")
        guard = self._report()["memory"]["guard"]
        if guard != "watching":
            raise BedError(f"the memory guard: {guard}")
        self._sh(REQUEST)
        return self._sh(f"systemctl show --value --property StatusText {UNIT}") + f", the memory guard {guard}"

    def read_stack(self) -> str:
        """py-spy, as sparkd calls it"""
        shown = self._sh(f"{PY_SPY} dump --nonblocking --pid $(pgrep --newest --full '{PROGRAM}')")
        if "serve_forever" not in shown:
            raise BedError(shown)
        return next(line for line in shown.splitlines() if "serve_forever" in line).strip()

    def kill_agent(self) -> str:
        """kill -9 of the agent"""
        agent, rank = self._agent(), self._rank()
        with self._client() as answers:
            self._sh(f"kill -KILL {agent}")
            self._await_agent_after(agent)
        if self._rank() != rank:
            raise BedError(f"the rank {rank} was not taken over: {self._rank()}")
        return f"agent {agent} became {self._agent()}, the engine is the same; {self._judge(answers)}"

    def kill_engine(self) -> str:
        """kill -9 of the engine"""
        agent, rank = self._agent(), self._rank()
        self._sh(f"kill -KILL {rank}")
        self._await_agent_after(agent)
        self._sh(REQUEST)
        ended = [line for line in self._journal().splitlines() if line.startswith("agent.run.failed")]
        if self._rank() == rank or len(ended) != 1 or "code=13 cause=killed-from-outside" not in ended[0]:
            raise BedError("\n".join(ended))
        return f"exit 13, killed-from-outside; engine {rank} became {self._rank()}, READY again"

    def reload(self) -> str:
        """systemctl reload"""
        agent, rank = self._agent(), self._rank()
        with self._client() as answers:
            self._sh(f"systemctl reload {UNIT}")
            self._await(lambda: "agent.reload.ended" in self._journal(), "the new program to have the rank")
            self._await(self._serves, "the agent to serve")
        if (self._agent(), self._rank()) != (agent, rank):
            raise BedError(f"{agent}, {rank} became {self._agent()}, {self._rank()}")
        return f"agent and engine are the same processes; {self._judge(answers)}"

    def stop(self) -> str:
        """systemctl stop"""
        self._sh(f"systemctl stop {UNIT}")
        left = self._sh(f"docker ps --all --quiet; ls /dev/shm; pgrep --full '{PROGRAM}' || true")
        if left or "Traceback" in self._journal():
            raise BedError(f"left, or a traceback in the journal: {left}")
        return "no container, segment or process, and no traceback in the journal"

    def purge(self) -> str:
        """dpkg --purge"""
        self._sh("dpkg --purge sparkd")
        files = "/usr/lib/sparkd /usr/bin/sparkd /usr/share/sparkd /run/sparkd* /var/lib/sparkd /etc/sparkd"
        left = self._sh(f"ls -d {files} 2>/dev/null || true; systemctl list-units --all --no-legend 'sparkd*'")
        if left:
            raise BedError(f"left: {left}")
        return "no program, configuration, state or unit"

    def uptime(self) -> float:
        """Seconds by the machine's own clock."""
        with suppress(BedError):
            return float(self.machine.read("/proc/uptime").split()[0])
        return 0.0

    def tail(self) -> str:
        """For a person, after a failure."""
        with suppress(BedError):
            return self.machine.sh(
                "journalctl --no-pager --lines=120 _PID=1 + SYSLOG_IDENTIFIER=sparkd", check=False, timeout=STEP_SECONDS
            ).stdout
        return ""

    @contextmanager
    def _client(self) -> Iterator[list[str]]:
        """A client that sends a request after the other. Once left, what came of each."""
        answers: list[str] = []
        self.machine.write("/run/client", CLIENT)
        self._sh("systemd-run --quiet --collect --unit client sh /run/client")
        time.sleep(2)
        yield answers
        time.sleep(2)
        self._sh("systemctl stop client")
        answers += self.machine.read("/run/requests").splitlines()

    def _judge(self, answers: list[str]) -> str:
        wrong = len(answers) - answers.count("answered")
        if wrong or not answers:
            raise BedError(f"requests: {answers}")
        return f"0 of {len(answers)} requests failed"

    def _await(self, look: Callable[[], bool], what: str) -> None:
        wait_for(look, STEP_SECONDS, what, pause=0.25)

    def _await_agent_after(self, agent: int) -> None:
        self._await(lambda: self._agent() not in (0, agent) and self._serves(), "another agent to serve")

    def _serves(self) -> bool:
        report = self._report()
        return report.get("phase") == "serving" and report.get("pid") == self._agent()

    def _report(self) -> dict[str, Any]:
        text = self.machine.run("cat", "/run/sparkd/report.json", check=False).stdout
        return dict(json.loads(text or "{}"))

    def _agent(self) -> int:
        return int(self._sh(f"systemctl show --value --property MainPID {UNIT}"))

    def _rank(self) -> int:
        return int(json.loads(self.machine.read("/run/sparkd/private/rank.json"))["pid"])

    def _journal(self) -> str:
        return self._sh(f"journalctl --unit {UNIT} --output cat --no-pager")

    def _sh(self, line: str) -> str:
        return self.machine.sh(line, timeout=STEP_SECONDS).stdout.strip()
