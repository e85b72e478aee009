"""A dockerd that stops or restarts ends a rank, unless it keeps containers alive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest
from tests.unit.followers import LOADING, STOPS, following
from tests.unit.nodes import until

from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.lib.errors import EngineEndedError

BOOM = "RuntimeError: boom"


@pytest.fixture
def machine(worker: AgentUnderTest) -> Tree:
    """Of the worker: its dockerd runs, and ends its containers with it."""
    machine = Tree(Path(worker.agent.host.files.root))
    machine.dockerd(700)
    machine.docker("/info", {"LiveRestoreEnabled": False})
    return machine


def end_with_docker(worker: AgentUnderTest, machine: Tree, engine_line: str) -> EngineEndedError:
    """Let a rank that has logged this line end while its dockerd is about to stop, and no longer listens."""
    with following(worker, engine_line) as (rank, process, walk):
        until(lambda: rank.log.progress != LoadProgress(step_since=rank.log.progress.step_since))
        (machine.root / "proc/net/unix").write_text("")
        process.kill()
        return walk.ended_by(EngineEndedError)


@pytest.mark.parametrize("engine_line", [LOADING, STOPS, BOOM])
def test_a_container_that_ends_with_docker_names_docker_whatever_the_engine_logged(
    worker: AgentUnderTest, machine: Tree, engine_line: str
) -> None:
    assert end_with_docker(worker, machine, engine_line).cause == "docker-restarted"


@pytest.mark.parametrize(
    ("engine_line", "cause"), [(LOADING, "engine-ended"), (STOPS, "engine-stopped"), (BOOM, "engine-error")]
)
def test_a_container_that_docker_would_have_kept_ends_by_its_own_cause(
    worker: AgentUnderTest, machine: Tree, engine_line: str, cause: str
) -> None:
    machine.docker("/info", {"LiveRestoreEnabled": True})
    assert end_with_docker(worker, machine, engine_line).cause == cause


def test_a_new_dockerd_ends_the_run(worker: AgentUnderTest, machine: Tree) -> None:
    with following(worker, LOADING, docker_goes=True) as (rank, process, walk):
        until(lambda: rank.log.broken_off_at is not None)
        time.sleep(0.5)
        assert not walk.over, "nobody ends the rank as long as no other dockerd does"
        machine.dockerd(701)
        error = walk.ended_by(EngineEndedError)
        assert process.poll() is None
    assert error.cause == "docker-restarted"
    assert "dockerd was stopped or restarted" in error.reason


def test_a_new_dockerd_that_keeps_containers_ends_no_run(worker: AgentUnderTest, machine: Tree) -> None:
    machine.docker("/info", {"LiveRestoreEnabled": True})
    with following(worker, LOADING, docker_goes=True) as (rank, process, walk):
        until(lambda: rank.log.broken_off_at is not None)
        machine.dockerd(701)
        time.sleep(1.2)
        assert not walk.over
        process.kill()
        assert walk.ended_by(EngineEndedError).cause != "docker-restarted"


@pytest.mark.parametrize(
    ("argv", "file"), [((), '{"live-restore": true}'), (("/usr/bin/dockerd", "--live-restore"), "")]
)
def test_live_restore_that_a_reload_turned_on_keeps_a_healthy_rank(
    worker: AgentUnderTest, machine: Tree, argv: tuple[str, ...], file: str
) -> None:
    with following(worker, LOADING, docker_goes=True) as (rank, process, walk):
        until(lambda: rank.log.broken_off_at is not None)
        machine.file("/etc/docker/daemon.json", file)
        machine.dockerd(701, argv)
        until(lambda: not rank.record.dockerd_pid)
        assert not walk.over
        process.kill()
        error = walk.ended_by(EngineEndedError)
    assert error.cause != "docker-restarted"
