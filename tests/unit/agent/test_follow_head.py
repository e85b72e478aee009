"""A worker follows its head's report of the engine, and ends once its head ends or is lost."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_steps import StepsThread, joined_worker
from tests.unit.cluster_nodes import AgentUnderTest, addresses, settings
from tests.unit.engine_server import engine
from tests.unit.followers import LOADING, following
from tests.unit.nodes import Node, report, until

from sparkd.agent.daemon.serving import FOLLOW_SECONDS
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.errors import PeerLostError
from sparkd.base.status.model import Phase


def test_a_worker_follows_the_phases_of_its_head(worker: AgentUnderTest, head: Node) -> None:
    with following(worker, LOADING) as (rank, _, _):
        until(lambda: "loading weights" in worker.report.message)
        assert worker.report.phase is Phase.LOADING
        assert not rank.ready
        head.publish(report(0, phase=Phase.LOADING, epoch="e", plan_digest="d"))
        for phase in (Phase.SERVING, Phase.DEGRADED, Phase.SERVING):
            head.publish(report(0, phase=phase, epoch="e", plan_digest="d"))
            took = until(lambda of=phase: worker.report.phase is of)  # type: ignore[misc]  # bound now
            assert took < FOLLOW_SECONDS / 2, "its head's news wake it"
            assert rank.ready
        served = "rank 1 of the engine that spark1 (127.0.0.1) serves"
        assert worker.report.message == served
        no_token = "requests run and no token came for 13 s"
        head.publish(report(0, phase=Phase.DEGRADED, epoch="e", plan_digest="d", message=no_token))
        until(lambda: worker.report.message == f"{served}; it is degraded: {no_token}")


@pytest.mark.parametrize(
    ("phase", "message", "reason"),
    [
        (Phase.FAILED, "rank 2 has died", "rank 0 on spark1 (127.0.0.1) failed: rank 2 has died"),
        (Phase.STOPPING, "stop requested", "rank 0 on spark1 (127.0.0.1) leaves: stop requested"),
    ],
)
def test_a_head_that_ends_also_ends_the_worker(
    worker: AgentUnderTest, head: Node, phase: Phase, message: str, reason: str
) -> None:
    with following(worker) as (_, _, walk):
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: worker.report.phase is Phase.SERVING)
        head.publish(report(0, phase=phase, message=message, epoch="e", plan_digest="d"))
        assert until(lambda: walk.over) < 1
        error = walk.ended_by(PeerLostError)
    assert error.reason == reason


class HeadEngine:
    """Answers with `status`, and notes the requests."""

    def __init__(self) -> None:
        self.status = 200
        self.requests = list[str]()

    def answer(self, request: str, _key: str) -> tuple[int, bytes]:
        self.requests.append(request)
        return self.status, b""


@contextmanager
def silent_head(
    tree: Tree, port: int, head: Node, head_engine: HeadEngine, returns_seconds: int = 15, api_host: str = ""
) -> Iterator[tuple[AgentUnderTest, StepsThread]]:
    """A worker whose head has said nothing for 25 s, and whose agent may return in this time."""
    with engine(head_engine.answer, address=socket.gethostbyname(api_host or "127.0.0.1")) as api_port:
        configured = settings(
            addresses(2), port, api_port=api_port, api_host=api_host, agent_return_seconds=returns_seconds
        )
        with joined_worker(tree, configured) as worker, following(worker) as (_, _, walk):
            head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
            until(lambda: worker.report.phase is Phase.SERVING)
            assert head_engine.requests == []
            head.publish_bytes(b"")
            reader = worker.agent.monitor.readers[0]
            until(lambda: reader.status.said == "it has no report yet")
            assert reader.heard_at is not None
            reader.heard_at -= 25.0
            yield worker, walk


@pytest.mark.parametrize("api_host", ["", "127.0.0.9"])
def test_a_head_whose_agent_hangs_is_lost_once_its_engine_does_not_answer(
    tree: Tree, port: int, head: Node, api_host: str
) -> None:
    head_engine = HeadEngine()
    with silent_head(tree, port, head, head_engine, api_host=api_host) as (worker, walk):
        until(lambda: worker.report.message.endswith("; the engine answers"))
        assert worker.report.phase is Phase.DEGRADED
        assert not walk.over
        head_engine.status = 503
        reader = worker.agent.monitor.readers[0]
        assert reader.heard_at is not None
        reader.heard_at -= 5.0
        until(lambda: walk.over)
        error = walk.ended_by(PeerLostError)
    assert re.search(r"silent for \d+ s: .*, and the engine does not answer$", error.reason), error.reason
    assert set(head_engine.requests) == {"GET /health"}


@pytest.mark.parametrize(
    ("returns_seconds", "api_host"), [(0, ""), (15, "localhost")], ids=["need not return", "API on loopback"]
)
def test_a_silent_head_is_lost_without_a_look_at_its_engine(
    tree: Tree, port: int, head: Node, returns_seconds: int, api_host: str
) -> None:
    head_engine = HeadEngine()
    with silent_head(tree, port, head, head_engine, returns_seconds, api_host) as (_, walk):
        until(lambda: walk.over)
        error = walk.ended_by(PeerLostError)
    assert re.search(r"silent for \d+ s: [^,]*$", error.reason), error.reason
    assert head_engine.requests == []


def test_the_last_report_has_the_cause_of_a_node_that_failed_first_once_that_has_named_it(
    worker: AgentUnderTest, head: Node
) -> None:
    failed = report(0, phase=Phase.FAILED, message="memory ran out", epoch="e", plan_digest="d")
    with following(worker, LOADING) as (rank, _, walk):
        head.publish(failed)
        error = walk.ended_by(PeerLostError)
        later = threading.Timer(0.5, head.publish, (replace(failed, cause="memory-guard"),))
        later.start()
        assert shutdown_on_error(worker.agent, rank, error) == 14
        later.join()
    (peer,) = worker.report.peers
    assert peer.report is not None
    assert worker.report.cause == "peer-failed"
    assert peer.report.cause == "memory-guard"
