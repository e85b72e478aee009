"""`sparkd preflight --deep`: the program that loads a GPU, its container, and when no GPU is loaded."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import DESCRIPTION, REF
from tests.unit.cluster_nodes import machine
from tests.unit.commands import sparkd
from tests.unit.docker_server import json_response, listening, plain
from tests.unit.measure.gpu_findings import GB10, RESULT, clocks, not_ok, text
from tests.unit.wire import END, http, serving

from sparkd.agent.actions.container_bodies import program_body
from sparkd.agent.actions.owner_lock import acquire_lock
from sparkd.agent.preflight.check import Finding
from sparkd.base.cluster.membership import resolve_context
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuClocks
from sparkd.base.host.gpu_access import GpuAccess
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import BlockedError, ExitCode, LaunchError
from sparkd.tools.measure.gpu import measure_gpu
from sparkd.tools.measure.gpu_verdict import parse_load

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may load the GPU")


def test_the_program_has_the_gpu_that_the_plan_would_use_and_no_more_rights() -> None:
    without = program_body("i", "true", {})
    assert without["Env"] == ["HOME=/tmp", "NVIDIA_VISIBLE_DEVICES=void"]
    for access, env in ((GpuAccess.GPUS, []), (GpuAccess.DEVICE, []), (GpuAccess.RUNTIME, ["all"])):
        body = program_body("i", "true", {}, access)
        assert body["Env"] == ["HOME=/tmp", *(f"NVIDIA_VISIBLE_DEVICES={devices}" for devices in env)]
        before, host_config = without["HostConfig"], body["HostConfig"]
        assert isinstance(host_config, dict) and isinstance(before, dict)
        assert ("Runtime" in host_config) != ("DeviceRequests" in host_config)
        assert before.items() <= host_config.items()


TORCH = """\
import time
bfloat16 = uint8 = None
class Tensor:
    def copy_(self, other): time.sleep(0.01)
class cuda:
    synchronize = staticmethod(lambda: None)
def make(*sizes, device, dtype):
    assert device == "cuda"
    return Tensor()
randn = ones = make
def empty_like(other): return Tensor()
def mm(left, right, out): time.sleep(0.01)
"""


def run_load(tmp_path: Path, torch: str, python: str) -> subprocess.CompletedProcess[str]:
    """The program with a torch of a few lines, as `python3`; its times are shortened."""
    if torch:
        (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "python3").symlink_to(python)
    program = read_data("gpu-load.sh").decode().replace("= 3, 8, 2", "= 0.1, 0.2, 0.1")
    for path in ("/opt/env/bin/python3", "/opt/venv/bin/python3"):
        program = program.replace(path, "")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=env, timeout=60)


def test_the_program_prints_what_it_has_measured(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = run_load(tmp_path, TORCH, sys.executable)
    load = parse_load(ended.stdout + ended.stderr)
    assert load is not None, ended.stderr
    assert ended.returncode == 0
    assert began < load.began < load.ended < time.monotonic()
    assert 0.5 < load.tflops / (100 * 2 * 8192**3 / 1e12) <= 1
    assert 0.5 < load.copy_gbps / (100 * 2 * 2**30 / 1e9) <= 1


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    ended = run_load(tmp_path, "", sys.executable)
    assert ended.returncode == 1
    assert ended.stdout == "no python3 of this image has torch\n"


class Machine:
    """A node with a GB10, and its docker. `log` and `code` are the program's."""

    def __init__(self, tree: Tree) -> None:
        self.root = Path(machine(tree, 0).files.root)
        self.tree = Tree(self.root)
        self.requests: list[str] = []
        self.created: dict[str, Any] = {}
        self.code, self.log = 0, f"{RESULT}\n"
        self.on_start: Callable[[], object] = lambda: None
        self.hangs, self.percent = 0.0, 3
        self.tree.dockerd()
        self.tree.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
        self.tree.docker("/version", {"Version": "29.2.1", "Arch": "amd64"})
        self.tree.docker("/info", {"Runtimes": {"runc": {}, "nvidia": {}}})
        self.tree.docker(f"/images/{REF}/json", {**DESCRIPTION, "Architecture": "amd64", "Os": "linux"})
        self.configure("all")
        self.gpu([GB10])

    def configure(self, gpus: str) -> None:
        recipe = f"schema: 1\nname: loaded\nextends: tiny-cpu\ncontainer: {{gpus: {gpus}}}\n"
        self.tree.file("/etc/sparkd/recipes/loaded.yaml", recipe)
        self.tree.file("/etc/sparkd/sparkd.toml", 'engine = {recipe = "loaded"}\nobserve.listen = ""\n')

    def gpu(self, names: list[str], processes: tuple[tuple[int, int | None], ...] = (), error: str = "") -> None:
        listed = [{"pid": pid, "used_bytes": used} for pid, used in processes]
        facts = {"names": names, "processes": listed, "error": error, "trouble": "other" if error else ""}
        self.tree.file("/.sparkd/nvml.json", json.dumps(facts))

    def docker(self, request: bytes) -> Iterable[bytes]:
        head, _, content = request.partition(END)
        path = plain(head.decode().partition(" HTTP/")[0])
        self.requests.append(path)
        if path == "POST /containers/create":
            self.created = json.loads(content)
            return json_response({"Id": "c" * 64}, 201)
        if path.endswith("/start"):
            self.on_start()
        if path.endswith("/wait"):
            time.sleep(self.hangs)
            return json_response({"StatusCode": self.code})
        if path.endswith("/json"):
            return json_response({"Config": {"Tty": True}})
        return (http(self.log.encode()),) if path.endswith("/logs") else (http(b"", status=204),)

    def measure(self, deadline_seconds: int = 30) -> list[Finding]:
        host = Host(self.root)
        node = resolve_context(load_settings({}, self.root), None, host)
        first = iter([(GpuClocks(GB10, 2411, 9.0, self.percent),)])
        return measure_gpu(node, host, lambda: next(first, (clocks(2400, 88),)), deadline_seconds)

    @property
    def removed(self) -> bool:
        return self.requests[-1].startswith("DELETE /containers/")


@pytest.fixture
def gb10() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket
        node = Machine(Tree(Path(folder)))
        with listening(f"{node.root}/run/docker.sock") as (_, listener), serving(listener, node.docker):
            yield node


@needs_root
def test_the_container_has_the_gpu_and_no_network(gb10: Machine) -> None:
    gb10.measure()
    host_config = gb10.created["HostConfig"]
    assert gb10.created["Image"] == DESCRIPTION["Id"]
    assert gb10.created["NetworkDisabled"] and host_config["NetworkMode"] == "none"
    assert host_config["ReadonlyRootfs"] and host_config["CapDrop"] == ["ALL"]
    assert host_config["Runtime"] == "nvidia", "the only way to the GPU that this docker has"
    assert "Mounts" not in host_config and "Binds" not in host_config
    assert {"io.sparkd.role", "io.sparkd.rank", "io.sparkd.invocation"} == gb10.created["Labels"].keys()


@needs_root
def test_clocks_count_while_the_products_run(gb10: Machine) -> None:
    began = time.monotonic()
    gb10.log = RESULT.replace("10.0", str(began)).replace("18.0", str(began + 8))
    gb10.hangs = 1.2
    assert not_ok(gb10.measure()) == {}
    assert gb10.removed
    gb10.log = RESULT.replace("10.0", str(began - 9)).replace("18.0", str(began - 1))
    assert not_ok(gb10.measure()) == {"clocks": "unknown"}


@needs_root
@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (0, "\x1b[31mgarbage\n", "exit code 0: \\x1b[31mgarbage"),
        (0, RESULT.replace("88.2", "NaN"), "NaN"),
        (0, "x" * 9000, "xxx…"),
        (0, "", "exit code 0: no output"),
        (1, "no python3 of this image has torch\n", "no python3 of this image has torch"),
        (1, RESULT, "exit code 1"),
        (137, "Killed\n", "exit code 137: Killed"),
    ],
)
def test_a_program_without_a_result_is_unknown(gb10: Machine, code: int, log: str, words: str) -> None:
    gb10.code, gb10.log = code, log
    (finding,) = gb10.measure()
    assert finding.verdict.level.value == "unknown"
    assert words in finding.verdict.reason
    assert "sparkd preflight --dry-run" in finding.verdict.hint
    assert len(finding.verdict.reason) < 400
    assert gb10.removed


@needs_root
def test_a_program_that_does_not_end_is_removed(gb10: Machine) -> None:
    gb10.hangs = 3
    with pytest.raises(LaunchError, match=r"the GPU was not measured: .*can't be run to its end") as raised:
        gb10.measure(deadline_seconds=1)
    assert "dmesg" in raised.value.hint
    assert gb10.removed


@needs_root
def test_a_person_who_interrupts_it_leaves_no_container(gb10: Machine) -> None:
    gb10.hangs = 1.5
    gb10.on_start = lambda: threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    try:
        with pytest.raises(KeyboardInterrupt):
            gb10.measure()
    finally:
        signal.signal(signal.SIGINT, before)
    assert gb10.removed


@needs_root
def test_who_loads_the_gpu_too_is_named_and_an_idle_desktop_is_not(gb10: Machine) -> None:
    gb10.tree.process(40, "Xorg")
    gb10.gpu([GB10], ((40, 5 << 20),))
    assert "users" not in not_ok(gb10.measure())
    gb10.on_start = lambda: gb10.gpu([GB10], ((40, None), (77, None)))
    users = gb10.measure()[-1].verdict
    assert users.level.value == "warn"
    assert users.reason.endswith(": pid 77"), "it came meanwhile"
    gb10.percent = 98
    assert gb10.measure()[-1].verdict.reason.endswith(": pid 40 (Xorg), pid 77")
    gb10.on_start = lambda: None
    gb10.gpu([GB10])
    assert gb10.measure()[-1].verdict.reason.endswith(": a process without a name")


@needs_root
def test_a_busy_node_is_refused_and_nothing_is_started(gb10: Machine) -> None:
    def refused(words: str, hint: str) -> None:
        with pytest.raises(BlockedError, match=words) as raised:
            gb10.measure()
        assert hint in raised.value.hint
        assert gb10.requests == []

    fd = acquire_lock(Host(gb10.root), NodeOwner(40, "sparkd run --role head", "x"))
    gb10.tree.process(40, "sparkd")
    gb10.tree.owner(40)
    refused("owned by pid 40", "systemctl stop sparkd-head")
    os.close(fd)
    gb10.tree.process(41, "VLLM::Worker")
    gb10.gpu([GB10], ((41, 100 << 30),))
    refused(r"100.0 GiB of the GPU's memory is held by pid 41 \(VLLM::Worker\)", "sudo sparkd preflight --deep")
    gb10.gpu([], error="it did not answer in 10 s")
    refused("can't be queried: it did not answer", "sparkd preflight --dry-run")
    gb10.gpu([GB10])
    gb10.tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=7)
    refused("7.0 GiB of memory is available, 8.0 GiB needed", "--dry-run")


@needs_root
def test_an_image_that_is_not_there_is_refused_with_the_way_to_it(gb10: Machine) -> None:
    (gb10.root / f".sparkd/docker/images/{REF}/json.json").unlink()
    with pytest.raises(BlockedError, match=f"image {REF} is not on this node") as raised:
        gb10.measure()
    assert "sudo make demo" in raised.value.hint
    (gb10.root / "run/docker.pid").unlink()
    with pytest.raises(BlockedError, match="docker is not running") as raised:
        gb10.measure()
    assert "sudo systemctl start docker" in raised.value.hint
    assert gb10.requests == []


@needs_root
def test_without_a_gpu_there_is_nothing_to_measure(gb10: Machine) -> None:
    gb10.gpu([])
    assert "nothing to measure: this node has no GPU" in text(gb10.measure())
    gb10.gpu([GB10])
    gb10.configure("none")
    findings = gb10.measure()
    assert "nothing to measure: the plan uses no GPU" in text(findings)
    assert not_ok(findings) == {"compute": "skipped"}
    assert gb10.requests == []


@pytest.mark.parametrize("word", ["--dry-run", "--root=/", "--fix=7"])
def test_it_goes_with_no_other_option_that_looks_or_changes(word: str) -> None:
    done = sparkd("preflight", "--deep", word)
    assert done.returncode == ExitCode.USAGE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_only_root_may_load_the_gpu() -> None:
    done = sparkd("preflight", "--deep")
    assert done.returncode == ExitCode.USAGE
    assert "sudo sparkd preflight --deep" in done.stderr
