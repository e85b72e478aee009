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


@pytest.mark.parametrize("live_restore", [False, True])
@pytest.mark.parametrize("engine_line", [LOADING, STOPS, "RuntimeError: boom"])
def test_a_container_that_ends_with_docker_names_docker_whatever_the_engine_logged(
    worker: AgentUnderTest, engine_line: str, live_restore: bool
) -> None:
    machine = Tree(Path(worker.agent.host.files.root))
    machine.dockerd(700)
    machine.docker("/info", {"LiveRestoreEnabled": live_restore})
    with following(worker, engine_line) as (rank, process, walk):
        until(lambda: rank.log.progress != LoadProgress(step_since=rank.log.progress.step_since))
        (machine.root / "proc/net/unix").write_text("")  # a dockerd that is about to stop no longer listens
        process.kill()
        error = walk.ended_by(EngineEndedError)
    expected = {LOADING: "engine-ended", STOPS: "engine-stopped", "RuntimeError: boom": "engine-error"}[engine_line]
    assert error.cause == (expected if live_restore else "docker-restarted")


@pytest.mark.parametrize("live_restore", [False, True])
def test_a_new_dockerd_ends_the_run_unless_it_keeps_containers(worker: AgentUnderTest, live_restore: bool) -> None:
    machine = Tree(Path(worker.agent.host.files.root))
    machine.dockerd(700)
    machine.docker("/info", {"LiveRestoreEnabled": live_restore})
    with following(worker, LOADING, docker_goes=True) as (rank, process, walk):
        until(lambda: rank.log.broken_off_at is not None)
        time.sleep(0.5)
        assert not walk.over, "nobody ends the rank as long as no other dockerd does"
        machine.dockerd(701)
        time.sleep(0.7)
        assert walk.over is not live_restore
        assert process.poll() is None
        if live_restore:
            process.kill()
        error = walk.ended_by(EngineEndedError)
    assert ("dockerd was stopped or restarted" in error.reason) is not live_restore
    assert (error.cause == "docker-restarted") is not live_restore


@pytest.mark.parametrize(
    ("argv", "file"), [((), '{"live-restore": true}'), (("/usr/bin/dockerd", "--live-restore"), "")]
)
def test_live_restore_that_a_reload_turned_on_keeps_a_healthy_rank(
    worker: AgentUnderTest, argv: tuple[str, ...], file: str
) -> None:
    machine = Tree(Path(worker.agent.host.files.root))
    machine.dockerd(700)
    machine.docker("/info", {"LiveRestoreEnabled": False})
    with following(worker, LOADING, docker_goes=True) as (rank, process, walk):
        until(lambda: rank.log.broken_off_at is not None)
        machine.file("/etc/docker/daemon.json", file)
        machine.dockerd(701, argv)
        until(lambda: not rank.record.dockerd_pid)
        assert not walk.over
        process.kill()
        error = walk.ended_by(EngineEndedError)
    assert error.cause != "docker-restarted"
