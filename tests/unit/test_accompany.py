"""A worker's rank is what its head says of the engine, while both live. Its container is a process of the test."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, MemoryHands, addresses, free_port, life, running, settings
from tests.unit.nodes import Node, node, report, until
from tests.unit.test_rendezvous import come_together, walking

from sparkd.ending import RELEASE_SECONDS, mourn, stop
from sparkd.errors import EngineEndedError, PeerLostError
from sparkd.report.node_report import Phase
from sparkd.service import accompany

LOADING = "(Worker_TP1 pid=12) INFO 01-01 00:00:00 [x.py:1] Starting to load model /models/tiny..."
DIED = "(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def head(port: int) -> Iterator[Node]:
    """Rank 0, calling."""
    with node("127.0.0.1", port=port) as one:
        one.tell(report(0, epoch="e", plan_digest="d"))
        yield one


@pytest.fixture
def worker(tree: Tree, port: int, head: Node) -> Iterator[Life]:
    """Rank 1, in the head's epoch."""
    with life(tree, 1, settings(addresses(2), port)) as made:
        made.surveyed("d")
        with walking(made, come_together) as walk:
            assert walk.join() is None
        made.ended.clear()
        yield made


def test_it_loads_serves_and_is_degraded_as_its_head_is(worker: Life, head: Node) -> None:
    with (
        running(worker.agent, LOADING) as (rank, _),
        walking(worker, lambda agent: accompany(agent, rank)),
    ):
        until(lambda: "loading weights" in worker.report.message)
        assert worker.report.phase is Phase.LOADING
        assert not rank.ready
        head.tell(report(0, phase=Phase.LOADING, epoch="e", plan_digest="d"))
        for phase in (Phase.SERVING, Phase.DEGRADED, Phase.SERVING):
            head.tell(report(0, phase=phase, epoch="e", plan_digest="d"))
            assert until(lambda of=phase: worker.report.phase is of) < 1  # type: ignore[misc]  # bound now
            assert rank.ready
        assert worker.report.message == "rank 1 of the engine that spark1 (127.0.0.1) serves"


def test_an_ended_container_ends_it_at_once_with_what_the_engine_said(worker: Life) -> None:
    with (
        running(worker.agent, LOADING, "RuntimeError: boom") as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.story.cause != "")
        process.kill()
        assert until(lambda: walk.over) < 2
        error = walk.join()
    assert isinstance(error, EngineEndedError)
    assert error.reason.startswith("the engine ended while loading weights")
    assert error.reason.endswith("RuntimeError: boom")


def test_a_container_that_ends_with_its_docker_is_told_as_that(worker: Life) -> None:
    with (
        running(worker.agent, LOADING, docker_goes=True) as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.broken_off_at is not None)
        process.kill()
        error = walk.join()
    assert isinstance(error, EngineEndedError)
    assert error.reason.endswith("docker went away shortly before")


@pytest.mark.parametrize("live_restore", [False, True])
def test_a_rank_that_the_next_dockerd_ends_is_ended_at_once_and_one_that_it_keeps_lives_on(
    worker: Life, live_restore: bool
) -> None:
    machine = Tree(Path(worker.agent.host.files.root))
    machine.dockerd(700)
    machine.docker("/info", {"LiveRestoreEnabled": live_restore})
    with (
        running(worker.agent, LOADING, docker_goes=True) as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.broken_off_at is not None)
        time.sleep(0.5)
        assert not walk.over, "nobody ends the rank as long as no other dockerd does"
        machine.dockerd(701)
        time.sleep(0.7)
        assert walk.over is not live_restore
        assert process.poll() is None
        if live_restore:
            process.kill()
        error = walk.join()
    assert isinstance(error, EngineEndedError)
    assert ("another dockerd has started" in error.reason) is not live_restore


def test_a_process_of_the_rank_that_died_ends_it_before_its_container_does(worker: Life) -> None:
    with (
        running(worker.agent, LOADING, DIED) as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        error = walk.join()
        assert process.poll() is None
    assert isinstance(error, EngineEndedError)
    assert error.reason.startswith("a process of the rank has died")


@pytest.mark.parametrize(
    ("phase", "message", "reason"),
    [
        (Phase.FAILED, "rank 2 has died", "rank 0 on spark1 (127.0.0.1) failed: rank 2 has died"),
        (Phase.STOPPING, "a stop was asked for", "rank 0 on spark1 (127.0.0.1) leaves: a stop was asked for"),
    ],
)
def test_a_head_that_ends_ends_it_at_once(worker: Life, head: Node, phase: Phase, message: str, reason: str) -> None:
    with (
        running(worker.agent) as (rank, _),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        head.tell(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: worker.report.phase is Phase.SERVING)
        head.tell(report(0, phase=phase, message=message, epoch="e", plan_digest="d"))
        assert until(lambda: walk.over) < 1
        error = walk.join()
    assert isinstance(error, PeerLostError)
    assert error.reason == reason


def test_a_rank_that_ends_because_its_head_did_is_told_as_that(worker: Life, head: Node) -> None:
    said = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
    with (
        running(worker.agent, LOADING, said) as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.story.cause != "")
        process.kill()
        head.tell(report(0, phase=Phase.FAILED, message="out of memory", epoch="e", plan_digest="d"))
        error = walk.join()
    assert isinstance(error, PeerLostError)
    assert error.reason == "rank 0 on spark1 (127.0.0.1) failed: out of memory"


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


def test_a_rank_whose_head_lives_on_has_ended_by_itself_whatever_its_words(worker: Life, head: Node) -> None:
    head.tell(report(0, phase=Phase.LOADING, epoch="e", plan_digest="d"))
    with (
        running(worker.agent, LOADING, CLOSED) as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.story.cause != "")
        process.kill()
        error = walk.join()
    assert isinstance(error, EngineEndedError)
    assert worker.report.phase is Phase.FAILED, "the others know before it is clear whether they had a part in it"
    assert CLOSED in error.reason
    assert mourn(worker.agent, None, error) == 13
    assert isinstance(worker.agent.hands, MemoryHands)
    assert json.loads(worker.agent.hands.written["last-exit.json"])["phase"] == "loading", "and not that of its end"


def test_a_rank_that_waited_in_vain_for_the_heads_is_no_failed_launch(worker: Life, head: Node) -> None:
    head.tell(report(0, phase=Phase.AWAITING_PEERS, epoch="e", plan_digest="d"))
    with (
        running(worker.agent, "torch.distributed.DistNetworkError: The client socket has timed out") as (rank, process),
        walking(worker, lambda agent: accompany(agent, rank)) as walk,
    ):
        until(lambda: rank.log.story.cause != "")
        process.kill()
        error = walk.join()
    assert isinstance(error, PeerLostError)
    assert error.reason.startswith("rank 0 on spark1 (127.0.0.1) was not started in time")


@pytest.mark.parametrize(("phase", "killed"), [(Phase.FAILED, True), (Phase.SERVING, False)])
def test_a_worker_that_is_stopped_ends_its_rank_at_once_when_its_head_is_out_of_service(
    worker: Life, head: Node, phase: Phase, killed: bool
) -> None:
    """A headless rank takes ten seconds to end by itself, and none outlives another for longer than two."""
    deaf = ("sh", "-c", "trap 'sleep 1; exit 7' TERM; echo; while :; do sleep 0.1; done")
    with running(worker.agent, command=deaf) as (rank, process):
        time.sleep(0.3)  # for the trap to be set
        head.tell(report(0, phase=phase, epoch="e", plan_digest="d"))
        until(lambda: _phase_of_head(worker) is phase)
        began = time.monotonic()
        stop(worker.agent, rank)
        took = time.monotonic() - began
        assert (process.wait() == -signal.SIGKILL) is killed
        assert took < RELEASE_SECONDS + 2 if not killed else took < 1.5


def _phase_of_head(worker: Life) -> Phase:
    (head,) = worker.agent.together.peers.snapshots()
    return head.report.phase if head.report else Phase.STOPPED
