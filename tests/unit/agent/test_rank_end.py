"""A worker's rank that ends names its cause: the engine, a person, or the head that it lost."""

from msgspec.structs import replace
from tests.unit.cluster_nodes import BRIEF, AgentUnderTest, last_exit
from tests.unit.followers import LOADING, STOPS, end_rank, following
from tests.unit.nodes import Node, report, until

from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.errors import EngineEndedError, ExitCode, PeerLostError
from sparkd.base.status.model import Phase

DIED = "(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
TIMED_OUT = "torch.distributed.DistNetworkError: The client socket has timed out"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"


def test_an_ended_container_ends_the_run_with_the_engines_words(worker: AgentUnderTest) -> None:
    with following(worker, LOADING, "RuntimeError: boom") as (rank, process, walk):
        end_rank(rank, process)
        assert until(lambda: walk.over) < 2
        error = walk.join()
    assert worker.notifier.stops == 1, "systemd knows it before the shutdown"
    assert isinstance(error, EngineEndedError)
    assert error.reason.startswith("the engine ended while loading weights")
    assert error.reason.endswith("RuntimeError: boom")


def test_a_rank_that_somebody_stopped_says_so(worker: AgentUnderTest) -> None:
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)"
    with following(worker, LOADING, STOPS, dead) as (rank, process, walk):
        end_rank(rank, process)
        error = walk.ended_by(EngineEndedError)
    assert error.cause == "engine-stopped"
    assert error.reason.endswith(": somebody else than sparkd stopped it, as by docker stop")


def test_a_dead_process_of_the_rank_ends_the_run_before_the_container_ends(worker: AgentUnderTest) -> None:
    with following(worker, LOADING, DIED) as (_, process, walk):
        error = walk.join()
        assert process.poll() is None
    assert isinstance(error, EngineEndedError)
    assert error.reason.startswith("a process of the rank has died: killed by signal 9 from outside, not by sparkd")
    assert error.cause == "killed-from-outside"


def test_a_rank_that_ends_after_its_head_names_the_head_as_the_cause(worker: AgentUnderTest, head: Node) -> None:
    with following(worker, LOADING, CLOSED) as (rank, process, walk):
        end_rank(rank, process)
        head.publish(report(0, phase=Phase.FAILED, message="out of memory", epoch="e", plan_digest="d"))
        error = walk.ended_by(PeerLostError)
    assert error.reason == "rank 0 on spark1 (127.0.0.1) failed: out of memory"


def test_a_rank_whose_head_continues_has_ended_by_itself(worker: AgentUnderTest, head: Node) -> None:
    head.publish(report(0, phase=Phase.LOADING, epoch="e", plan_digest="d"))
    with following(worker, LOADING, CLOSED) as (rank, process, walk):
        end_rank(rank, process)
        error = walk.ended_by(EngineEndedError)
    assert worker.report.phase is Phase.FAILED, "the others know before it is clear whether they had a part in it"
    assert CLOSED in error.reason


def test_the_recorded_exit_of_an_ended_rank_has_the_phase_before_its_end(worker: AgentUnderTest) -> None:
    with following(worker, LOADING, "RuntimeError: boom") as (rank, process, walk):
        end_rank(rank, process)
        error = walk.ended_by(EngineEndedError)
    assert shutdown_on_error(replace(worker.agent, pace=BRIEF), None, error) == ExitCode.ENGINE_ENDED
    assert last_exit(worker.agent.actions).phase == Phase.LOADING.value


def test_a_rank_that_timed_out_waiting_for_the_head_is_no_failed_launch(worker: AgentUnderTest, head: Node) -> None:
    head.publish(report(0, phase=Phase.AWAITING_PEERS, epoch="e", plan_digest="d"))
    with following(worker, TIMED_OUT) as (rank, process, walk):
        end_rank(rank, process)
        error = walk.ended_by(PeerLostError)
    assert error.reason.startswith("rank 0 on spark1 (127.0.0.1) was not started in time")
