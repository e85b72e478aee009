"""Docker itself: whether it runs, answers, has a way to the GPU, and keeps its containers over a restart."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.docker import Docker, DockerEngineFacts
from sparkd.base.host import Host, docker_config
from sparkd.base.lib.dockerd.reader import FORBIDDEN

HOOK = "/usr/bin/nvidia-container-runtime-hook"
GOOD = DockerEngineFacts(running=True, installed=True, version="29.2.1", gpu_ways=(HOOK,))
NO_WAY = replace(GOOD, gpu_ways=())
AWAY = DockerEngineFacts(running=False, installed=True)
SILENT = DockerEngineFacts(running=True, installed=True, error="no answer in 10 s")


@pytest.mark.parametrize(
    ("facts", "uses_gpu", "level", "words"),
    [
        pytest.param(GOOD, True, Level.OK, f"docker 29.2.1; to the GPU by {HOOK}", id="good"),
        pytest.param(NO_WAY, True, Level.BLOCK, "no way to the GPU", id="no way"),
        pytest.param(NO_WAY, False, Level.OK, "the plan uses no GPU", id="no way needed"),
        pytest.param(AWAY, True, Level.WARN, "is away: a launch waits for it sudo systemctl start docker", id="away"),
        pytest.param(replace(AWAY, installed=False), True, Level.WARN, "install docker", id="not installed"),
        pytest.param(SILENT, False, Level.UNKNOWN, "no answer in 10 s look at: systemctl status docker", id="silent"),
        pytest.param(replace(SILENT, error=FORBIDDEN), False, Level.UNKNOWN, "sudo sparkd preflight", id="forbidden"),
    ],
)
def test_docker_must_answer_and_have_a_way_to_the_gpu_for_a_plan_that_uses_it(
    facts: DockerEngineFacts, uses_gpu: bool, level: Level, words: str
) -> None:
    expect(Docker(uses_gpu).judge(facts), level, text=words)


def test_only_an_answer_is_awaited_here_not_a_docker_that_is_away() -> None:
    assert Docker(uses_gpu=False).judge(SILENT).awaits == "docker to answer"
    assert Docker(uses_gpu=False).judge(AWAY).awaits == ""


SNAP = "/var/snap/docker/471/run/docker.pid"
MOVED = '{"pidfile": "/run/my/docker.pid"}'
SERVICE = "0::/system.slice/docker.service"
STOP_SNAP = "sudo snap stop --disable docker"


def run_beside_dockerd(tree: Tree, daemon_json: str, cgroup: str, arguments: tuple[str, ...] = ()) -> tuple[str, str]:
    """Reason and hint of the warning where this dockerd runs, and docker.service is installed."""
    tree.file("/usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/bin/dockerd\n")
    tree.file(docker_config.DAEMON_JSON, daemon_json)
    tree.process(700, "dockerd", argv=("dockerd", *arguments), cgroup=cgroup)
    verdict = Docker(uses_gpu=False).run(Host(tree.root))[1]
    assert verdict.level is Level.WARN
    return verdict.reason, verdict.hint


@pytest.mark.parametrize(
    ("arguments", "daemon_json", "cgroup", "pid_file", "hint"),
    [
        pytest.param(
            ("--pidfile", SNAP), "{}", "0::/system.slice/snap.docker.dockerd.service", SNAP, STOP_SNAP, id="of snap"
        ),
        pytest.param((f"-p={SNAP}",), MOVED, SERVICE, SNAP, STOP_SNAP, id="a short flag"),
        pytest.param((), MOVED, SERVICE, "/run/my/docker.pid", "remove pidfile from /etc/docker", id="in its file"),
    ],
)
def test_a_dockerd_with_another_pid_file_is_named_with_what_helps(
    tree: Tree, arguments: tuple[str, ...], daemon_json: str, cgroup: str, pid_file: str, hint: str
) -> None:
    reason, remedy = run_beside_dockerd(tree, daemon_json, cgroup, arguments)
    assert f"keeps its pid in {pid_file}," in reason
    assert remedy.startswith(hint)


@pytest.mark.parametrize(
    ("daemon_json", "cgroup"),
    [
        pytest.param('{"pidfile": "/var/run/docker.pid"}', SERVICE, id="the default"),
        pytest.param(MOVED, f"0::/system.slice/docker-{'c' * 64}.scope", id="in a container"),
        pytest.param(MOVED, "0::/user.slice/user-1.slice/user@1.service/app.slice/x.service", id="a user's"),
    ],
)
def test_a_dockerd_that_is_not_the_machines_is_none_with_another_pid_file(
    tree: Tree, daemon_json: str, cgroup: str
) -> None:
    assert run_beside_dockerd(tree, daemon_json, cgroup)[1] == "sudo systemctl start docker"


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
    assert ("live-restore is off" in verdict.reason) is proposed
    assert ("sparkd init --plan" in verdict.hint) is proposed


@pytest.mark.parametrize("answer", [None, [], "busy", {"Runtimes": []}, {}])
def test_an_answer_that_is_not_dockers_is_unknown(tree: Tree, answer: object) -> None:
    tree.docker_engine()
    tree.docker("/info", answer)
    assert Docker(uses_gpu=True).run(Host(tree.root))[1].level is Level.UNKNOWN
