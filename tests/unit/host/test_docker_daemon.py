"""dockerd on this node: whether it listens, and the command that lets containers outlive its restart."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.host import Host, docker, docker_config


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
