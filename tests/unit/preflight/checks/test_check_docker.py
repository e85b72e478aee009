"""Docker itself: whether it runs, keeps its containers over a restart, and by which way containers get the GPU."""

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.docker import Docker, DockerEngineFacts
from sparkd.base.host import Host, docker, docker_config, gpu_access
from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError

HOOK = "/usr/bin/nvidia-container-runtime-hook"
GOOD = DockerEngineFacts(True, True, "", "29.2.1", ("runc",), (HOOK,))


@pytest.mark.parametrize(
    ("facts", "uses_gpu", "level", "says"),
    [
        (GOOD, True, Level.OK, f"docker 29.2.1; to the GPU by {HOOK}"),
        (replace(GOOD, gpu_ways=("/etc/cdi/nvidia.yaml",)), True, Level.OK, "to the GPU by /etc/cdi/nvidia.yaml"),
        (replace(GOOD, gpu_ways=("the runtime nvidia",)), True, Level.OK, "to the GPU by the runtime nvidia"),
        (replace(GOOD, gpu_ways=("the runtime nvidia",)), False, Level.OK, "no GPU"),
        (replace(GOOD, gpu_ways=()), True, Level.BLOCK, "no way to the GPU"),
        (replace(GOOD, gpu_ways=()), False, Level.OK, "the plan uses no GPU"),
        (DockerEngineFacts(False, True), True, Level.WARN, "docker is away"),
        (DockerEngineFacts(True, True, "no answer in 10 s"), False, Level.UNKNOWN, "no answer in 10 s"),
    ],
)
def test_docker_must_answer_and_have_a_way_to_the_gpu_for_a_plan_that_uses_it(
    facts: DockerEngineFacts, uses_gpu: bool, level: Level, says: str
) -> None:
    verdict = Docker(uses_gpu).judge(facts)
    assert verdict.level is level
    assert says in verdict.reason


def test_a_docker_that_does_not_answer_is_waited_for_and_one_that_is_away_holds_nobody_up() -> None:
    assert Docker(False).judge(DockerEngineFacts(True, True, "x")).awaits == "docker to answer"
    assert not Docker(False).judge(DockerEngineFacts(False, True)).level.blocks
    assert Docker(False).judge(DockerEngineFacts(True, True, FORBIDDEN)).hint == "sudo sparkd preflight --dry-run"


@pytest.mark.parametrize(("installed", "hint"), [(True, "sudo systemctl start docker"), (False, "install docker")])
def test_a_docker_that_is_not_there_can_not_be_started(installed: bool, hint: str) -> None:
    assert Docker(False).judge(DockerEngineFacts(False, installed)).hint.startswith(hint)


SNAP = "/var/snap/docker/471/run/docker.pid"
MOVED = '{"pidfile": "/run/my/docker.pid"}'
SERVICE = "0::/system.slice/docker.service"
CONTAINER = f"0::/system.slice/docker-{'c' * 64}.scope"


@pytest.mark.parametrize(
    ("argv", "daemon_json", "cgroup", "pid_file", "hint"),
    [
        (
            ("--pidfile", SNAP),
            "{}",
            "0::/system.slice/snap.docker.dockerd.service",
            SNAP,
            "sudo snap stop --disable docker",
        ),
        ((f"-p={SNAP}",), MOVED, SERVICE, SNAP, "sudo snap stop --disable docker"),
        ((), MOVED, SERVICE, "/run/my/docker.pid", "remove pidfile from /etc/docker/daemon.json"),
        (("--pidfile=/var/run/docker.pid",), "{}", SERVICE, "", "sudo systemctl start docker"),
        ((), MOVED, CONTAINER, "", "sudo systemctl start docker"),
        (
            (),
            MOVED,
            "0::/user.slice/user-1.slice/user@1.service/app.slice/x.service",
            "",
            "sudo systemctl start docker",
        ),
    ],
    ids=["of snap", "a short flag", "in its file", "the default", "in a container", "a user's"],
)
def test_a_dockerd_with_another_pid_file_is_named_with_what_helps(
    tree: Tree, argv: tuple[str, ...], daemon_json: str, cgroup: str, pid_file: str, hint: str
) -> None:
    tree.file("/usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    tree.file(docker_config.DAEMON_JSON, daemon_json)
    tree.process(700, "dockerd", argv=("dockerd", *argv), cgroup=cgroup)
    verdict = Docker(uses_gpu=False).run(Host(tree.root))[1]
    assert verdict.level is Level.WARN
    assert verdict.hint.startswith(hint)
    assert (f"keeps its pid in {pid_file}," in verdict.reason) is bool(pid_file)


@pytest.mark.parametrize(
    ("table", "runs"),
    [
        ("0: 00000002 00000000 00010000 0001 01 {} /run/docker.sock\n", True),
        ("0: 00000003 00000000 00000000 0001 03 {} /run/docker.sock\n", False),
        ("0: 00000002 00000000 00010000 0001 01 1 /run/docker.sock\n", False),
        ("0: 00000002 00000000 00010000 0001 01 {} /run/other.sock\n", False),
        ("0: 00000003 00000000 00000000 0001 03 9\n" * 420_000 + "0: 2 0 00010000 1 1 {} /run/docker.sock\n", True),
    ],
    ids=["listens", "no longer listens", "systemd's socket", "another socket", "a table of 16 MiB"],
)
def test_docker_is_queried_only_where_it_listens_itself(tree: Tree, table: str, runs: bool) -> None:
    tree.dockerd(700)
    tree.file("/proc/net/unix", f"Num\n{table.format(700)}")
    assert docker.running(Host(tree.root)) is runs


def test_a_row_that_a_users_socket_name_forges_is_no_error(tree: Tree) -> None:
    """bind(2) of an abstract name with line ends: the kernel prints its bytes as they are."""
    tree.dockerd(700)
    table = tree.file("/proc/net/unix")
    forged = b"Num\n0: 2 0 0 1 1 5 @\0\n0: a b 00010000 c d \xff /run/docker.sock\n"
    table.write_bytes(forged)
    assert not docker.running(Host(tree.root))
    table.write_bytes(forged + b"0: 2 0 00010000 1 1 700 /run/docker.sock\n")
    assert docker.running(Host(tree.root))


@pytest.mark.parametrize(
    ("info", "proposed"),
    [
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "inactive"}}, True),
        ({"LiveRestoreEnabled": True, "Swarm": {"LocalNodeState": "inactive"}}, False),
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "active"}}, False),
        ({"LiveRestoreEnabled": False, "Swarm": {"LocalNodeState": "error"}}, False),
        ({"LiveRestoreEnabled": False}, False),
        ({"Swarm": {"LocalNodeState": "inactive"}}, False),
    ],
)
def test_live_restore_is_proposed_where_it_is_off_and_docker_would_start_with_it(
    tree: Tree, info: dict[str, object], proposed: bool
) -> None:
    """dockerd does not start with it on a node of a swarm."""
    tree.docker_engine(**info)
    verdict = Docker(uses_gpu=False).run(Host(tree.root))[1]
    assert verdict.level is Level.OK
    assert ("live-restore is off" in verdict.reason, "sparkd init --plan" in verdict.hint) == (proposed,) * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"live-restore": True}),
        ('{"runtimes": {"nvidia": {"path": "x"}}, "live-restore": false}',
         {"runtimes": {"nvidia": {"path": "x"}}, "live-restore": True}),
    ],
)  # fmt: skip
def test_the_command_that_turns_live_restore_on_keeps_what_else_the_file_has(
    tmp_path: Path, before: str | None, after: dict[str, object]
) -> None:
    file = tmp_path / "docker/daemon.json"
    if before is not None:
        file.parent.mkdir()
        file.write_text(before)
    assert turn_on(file).returncode == 0
    assert json.loads(file.read_text()) == after
    assert [path.name for path in file.parent.iterdir()] == ["daemon.json"]


@pytest.mark.parametrize("text", ["", '{"runtimes": ', "[]"])
def test_the_command_leaves_a_file_that_is_not_valid_as_it_is_and_docker_too(tmp_path: Path, text: str) -> None:
    file = tmp_path / "daemon.json"
    file.write_text(text)
    completed = turn_on(file)
    assert completed.returncode != 0 and "reloaded" not in completed.stdout
    assert file.read_text() == text


def turn_on(file: Path) -> subprocess.CompletedProcess[str]:
    """By the command that is shown, on another file."""
    shown = docker_config.KEEP_CONTAINERS.replace(docker_config.DAEMON_JSON, str(file)).replace("sudo ", "")
    command = shown.replace("systemctl reload docker", "echo reloaded")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)


def gpu_ways(tree: Tree) -> tuple[str, ...]:
    return Docker(uses_gpu=True).probe(Host(tree.root)).gpu_ways


@pytest.mark.parametrize("mode", ["cdi", "csv", "jit-cdi"])
def test_a_hook_that_is_set_to_refuse_is_no_way(tree: Tree, mode: str) -> None:
    """As `nvidia-ctk config --set nvidia-container-runtime.mode=cdi` has it: --gpus ends with the hook's refusal."""
    tree.docker_engine(Runtimes={"nvidia": {}})
    tree.file(HOOK, mode=0o755)
    tree.file(gpu_access.TOOLKIT, f'#mode = "auto"\n[nvidia-container-runtime]\nmode = "{mode}"\n')
    assert gpu_ways(tree) == ("the runtime nvidia",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[nvidia-container-runtime]\nmode = 'auto'\n",
        "[nvidia-container-runtime]\nmode = 3\n",
        "mode = [",
        "[" * 9999,
    ],
)
def test_a_hook_counts_where_nothing_says_that_it_refuses(tree: Tree, text: str) -> None:
    tree.docker_engine()
    tree.file(HOOK, mode=0o755)
    tree.file(gpu_access.TOOLKIT, text)
    assert gpu_ways(tree) == (HOOK,)


@pytest.mark.parametrize(
    ("ways", "wanted"),
    [
        ((HOOK,), gpu_access.GpuAccess.GPUS),
        (("the runtime nvidia", HOOK, "/etc/cdi/nvidia.yaml"), gpu_access.GpuAccess.GPUS),
        (("/var/run/cdi/nvidia.yaml",), gpu_access.GpuAccess.DEVICE),
        (("the runtime nvidia", "/etc/cdi/nvidia.yaml"), gpu_access.GpuAccess.DEVICE),
        (("the runtime nvidia",), gpu_access.GpuAccess.RUNTIME),
        ((), gpu_access.GpuAccess.GPUS),
    ],
)
def test_a_container_requests_the_gpu_by_the_first_way(ways: tuple[str, ...], wanted: gpu_access.GpuAccess) -> None:
    assert gpu_access.choose_access(ways) is wanted


def test_each_launch_reads_dockers_ways_again(tree: Tree) -> None:
    assert gpu_access.read_access(Host(tree.root)) is gpu_access.GpuAccess.GPUS, "docker is away"
    tree.docker_engine(CDISpecDirs=["/etc/cdi"])
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    assert gpu_access.read_access(Host(tree.root)) is gpu_access.GpuAccess.DEVICE
    tree.docker("/info", "busy")
    with pytest.raises(DockerError):
        gpu_access.read_access(Host(tree.root))


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param(f"a:\n{'  - path: /usr/lib/libcuda.so' * 5000}\nkind: nvidia.com/gpu\n", True, id="at its end"),
        ('{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}', True),
        ('{\n  "kind" : "nvidia.com/gpu"\n}', True),
        ("kind: 'nvidia.com/gpu'", True),
        ("kind: management.nvidia.com/gpu", False),
        ("kind: nvidia.com/gpu-share", False),
        ('kind: "nvidia.com/gpu.shared"', False),
        ("kind: vendor.com/nic", False),
    ],
)
def test_a_specification_counts_if_its_kind_is_the_gpu(tree: Tree, text: str, counts: bool) -> None:
    tree.docker_engine(CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.file("/var/run/cdi/nvidia.yaml", text)
    assert gpu_ways(tree) == (("/var/run/cdi/nvidia.yaml",) if counts else ())


def test_a_specification_that_docker_does_not_read_is_no_way(tree: Tree) -> None:
    tree.file("/etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    tree.docker_engine()
    assert gpu_ways(tree) == (), "a docker before 25 knows no CDI"
    tree.docker("/info", {"Runtimes": {}, "CDISpecDirs": []})
    assert gpu_ways(tree) == ()


def test_an_unreadable_specification_hides_no_other_way_to_the_gpu(tree: Tree) -> None:
    """A link to nothing, a folder, and a file where a folder is looked for: what a half removed toolkit leaves."""
    tree.docker_engine(Runtimes={"nvidia": {}}, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])
    tree.link("/etc/cdi/a.yaml", "/missing")
    tree.file("/etc/cdi/b.json/x")
    tree.file("/var/run/cdi")
    assert gpu_ways(tree) == ("the runtime nvidia",)
    tree.file("/etc/cdi/c.yaml", "kind: nvidia.com/gpu\n")
    assert gpu_ways(tree) == ("the runtime nvidia", "/etc/cdi/c.yaml")


@pytest.mark.parametrize("answer", [None, [], "busy", {"Runtimes": []}, {}])
def test_an_answer_that_is_not_dockers_is_unknown(tree: Tree, answer: object) -> None:
    tree.docker_engine()
    tree.docker("/info", answer)
    facts = Docker(uses_gpu=True).probe(Host(tree.root))
    assert facts.error
    assert Docker(uses_gpu=True).judge(facts).level is Level.UNKNOWN
