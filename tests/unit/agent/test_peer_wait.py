"""How ranks start together and end together: real agents on loopback addresses, without docker and engine."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_steps import StepsThread, running_steps, wait_and_join, wait_while_blocked
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings, until_with
from tests.unit.known_good_entries import known_good_entry
from tests.unit.nodes import Node, node, report, until

from sparkd import __version__
from sparkd.agent.daemon.blocked import retry_while_blocked
from sparkd.agent.daemon.context import Agent, Pace
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.endings import Stage
from sparkd.base.lib.errors import (
    BlockedError,
    EngineEndedError,
    ExitCode,
    NotReadyError,
    OutdatedPlanError,
    PeerLostError,
    SparkdError,
)
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import never
from sparkd.base.lib.redaction import Redaction
from sparkd.base.plan.agreement import dump_values
from sparkd.base.state.switch import make_rollback
from sparkd.base.status.model import Contact, NodeReport, Phase


def await_message(agent: AgentUnderTest, text: str) -> None:
    until(lambda: text in agent.report.message)


@pytest.fixture
def worker(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    """Rank 1 of two, with a plan."""
    with agent_under_test(tree, 1, settings(addresses(2), port)) as agent:
        agent.set_plan("d")
        yield agent


@pytest.fixture
def head(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    """Rank 0 of three, with a plan."""
    with agent_under_test(tree, 0, settings(addresses(3), port)) as agent:
        agent.set_plan("d")
        yield agent


@pytest.fixture
def workers(port: int) -> Iterator[tuple[Node, Node]]:
    with node("127.0.0.2", port=port) as first, node("127.0.0.3", port=port) as second:
        yield first, second


def test_a_worker_waits_for_the_heads_call_and_joins_its_epoch(worker: AgentUnderTest, port: int) -> None:
    with running_steps(worker, wait_and_join) as walk:
        await_message(worker, "waiting for 127.0.0.1, where no sparkd runs")
        until(lambda: worker.notifier.up, 1)  # systemd holds it to be up, just after that message
        with node("127.0.0.1", port=port) as head:
            for sent, awaited in [
                (report(0, phase=Phase.PREFLIGHT), "spark1 (127.0.0.1), which is preflight"),
                (report(0, phase=Phase.SERVING, epoch="old", plan_digest="d"), "spark1 (127.0.0.1), which is serving"),
                (report(0, plan_digest="d"), "spark1 (127.0.0.1) to call its workers"),
                (report(0, epoch="e"), "spark1 (127.0.0.1) to call its workers"),  # of a plan not known yet
            ]:
                head.publish(sent)
                await_message(worker, f"waiting for {awaited}")
                assert worker.report.phase is Phase.AWAITING_PEERS
                assert worker.report.epoch == ""
            assert not walk.over
            head.publish(report(0, epoch="e", plan_digest="d"))
            assert until(lambda: walk.over) < 1
            assert (walk.error, worker.report.epoch) == (None, "e")


def test_lines_in_json_carry_the_epoch_once_it_is_known(
    worker: AgentUnderTest, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    worker.agent.log.configure(as_json=True, level="info")
    events = ProcessLog.events(worker.agent.log, Redaction())
    with node("127.0.0.1", port=port) as head:
        head.publish(report(0, epoch="e", plan_digest="d"))
        events.info("a.b.c")
        with running_steps(worker, wait_and_join) as walk:
            assert walk.join() is None
        events.info("a.b.c")
    until(lambda: worker.journal.read_bytes().count(b"\n") == 2)
    before, after = (json.loads(line.removeprefix("<6>")) for line in worker.journal.read_text().splitlines())
    assert "epoch" not in before
    assert after["epoch"] == "e"


def test_a_head_calls_when_all_workers_wait_and_continues_when_their_ranks_run(
    head: AgentUnderTest, workers: tuple[Node, Node]
) -> None:
    first, second = workers
    with running_steps(head, wait_and_join) as walk:
        first.publish(report(1, plan_digest="d"))
        for sent in (
            report(2, phase=Phase.PREFLIGHT),
            report(2, phase=Phase.COOLING, plan_digest="d"),
            report(2, phase=Phase.SERVING, epoch="old", plan_digest="d"),  # its rank of an older launch still runs
            report(2, phase=Phase.AWAITING_PEERS, epoch="old", plan_digest="d"),
        ):
            second.publish(sent)
            await_message(head, f"waiting for spark3 (127.0.0.3), which is {sent.phase.value}")
            assert head.report.epoch == ""
        second.publish(report(2, plan_digest="d"))
        until(lambda: head.report.epoch == head.agent.rank_id)
        first.publish(report(1, phase=Phase.LOADING, epoch=head.agent.rank_id, plan_digest="d"))
        second.publish(report(2, phase=Phase.LAUNCHING, epoch=head.agent.rank_id, plan_digest="d"))
        await_message(head, "waiting for the rank of spark3 (127.0.0.3), which is launching")
        time.sleep(0.3)
        assert not walk.over
        second.publish(report(2, phase=Phase.LOADING, epoch=head.agent.rank_id, plan_digest="d"))
        assert until(lambda: walk.over) < 1
        assert walk.error is None


@pytest.mark.parametrize(
    ("own", "theirs", "all_by"),
    [("rdma", "rdma", "rdma"), ("rdma", "tcp", "tcp"), ("tcp", "rdma", "tcp"), ("", "", "")],
)
def test_all_ranks_use_tcp_where_one_node_has_no_rdma(
    head: AgentUnderTest, workers: tuple[Node, Node], own: str, theirs: str, all_by: str
) -> None:
    head.agent.reporter.update(transport=own)
    workers[0].publish(report(1, plan_digest="d", transport="rdma" if own else ""))
    workers[1].publish(report(2, plan_digest="d", transport=theirs))
    with running_steps(head, wait_and_join):
        until(lambda: head.report.epoch != "")
        assert head.report.transport == all_by
    logged = [line for line in head.events.lines if "fabric.tcp.chosen" in line]
    assert len(logged) == (all_by == "tcp")
    assert all(f"without_rdma=['{'spark1' if own == 'tcp' else 'spark3'}']" in line for line in logged)


@pytest.mark.parametrize(
    ("own", "heads", "joins"),
    [("rdma", "tcp", "tcp"), ("tcp", "tcp", "tcp"), ("rdma", "rdma", "rdma"), ("tcp", "rdma", None)],
)
def test_a_worker_uses_the_transport_that_its_head_has_chosen(
    worker: AgentUnderTest, port: int, own: str, heads: str, joins: str | None
) -> None:
    worker.agent.reporter.update(transport=own)
    with node("127.0.0.1", port=port) as head, running_steps(worker, wait_and_join) as walk:
        head.publish(report(0, epoch="e", plan_digest="d", transport=heads))
        error = walk.join()
    assert (error is None) is (joins is not None)
    assert worker.report.transport == (joins or own)
    assert worker.report.epoch == ("e" if joins else "")


@pytest.mark.parametrize("names_devices", [False, True])
@pytest.mark.parametrize("up", [True, False])
def test_rdma_that_comes_up_while_a_node_waits_is_used(worker: AgentUnderTest, up: bool, names_devices: bool) -> None:
    plan, machine = worker.agent.plan, Tree(Path(worker.agent.host.files.root))
    container = plan.container.model_copy(update={"gpus": "all", "privileged": True})
    shared = (*plan.shared, *([("env.NCCL_IB_HCA", "{node.hcas}")] if names_devices else []))
    plan = replace(plan, container=container, shared=shared)
    worker.remake(context=replace(worker.agent.context, plan=plan), pace=Pace(rdma_seconds=0.1))
    worker.agent.reporter.update(transport="tcp")
    with running_steps(worker, wait_and_join) as walk:
        await_message(worker, "waiting for 127.0.0.1")
        machine.folder("/sys/class/net/bond0")
        machine.file("/sys/class/infiniband/rxe0/parent", "bond0\n")
        machine.file("/sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n")
        machine.file("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n" if up else "1: DOWN\n")
        if up and names_devices:
            assert isinstance(walk.join(), OutdatedPlanError), "its plan was made without them"
        elif up:
            until(lambda: worker.report.transport == "rdma")
        else:
            time.sleep(0.5)
        assert worker.report.transport == ("rdma" if up and not names_devices else "tcp")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (report(2, phase=Phase.LAUNCHING, epoch="another", plan_digest="d"), "belongs to another launch"),
        (report(2, phase=Phase.BLOCKED, plan_digest="d", message="62 GB, 96 needed"), "is blocked: 62 GB, 96 needed"),
        (report(2, incarnation="new", plan_digest="d"), "has restarted"),
    ],
)
def test_a_worker_that_is_lost_after_the_call_ends_the_head(
    head: AgentUnderTest, workers: tuple[Node, Node], sent: NodeReport, reason: str
) -> None:
    for rank, worker in enumerate(workers, 1):
        worker.publish(report(rank, plan_digest="d"))
    with running_steps(head, wait_and_join) as walk:
        until(lambda: head.report.epoch != "")
        workers[1].publish(sent)
        error = walk.ended_by(PeerLostError)
    assert error.reason == f"rank 2 on spark3 (127.0.0.3) {reason}"


def test_ranks_that_never_run_are_named_at_the_deadline(tree: Tree, port: int, workers: tuple[Node, Node]) -> None:
    for rank, worker in enumerate(workers, 1):
        worker.publish(report(rank, plan_digest="d"))
    with agent_under_test(tree, 0, settings(addresses(3), port)) as head:
        head.set_plan("d")
        with running_steps(head, partial(wait_and_join, ranks_seconds=1)) as walk:
            error = walk.ended_by(NotReadyError)
    assert error.reason.startswith("not every worker's rank ran within 1 s: spark2 (127.0.0.2), which is awaiting")


def plan_table(journal: Path) -> list[list[str]]:
    """The differing values, as the journal has them."""
    return [line.split("plan| ")[1].split() for line in journal.read_text().splitlines() if "plan| " in line]


def test_plans_that_differ_block_both_nodes_and_the_table_is_in_both_journals(tree: Tree, port: int) -> None:
    configured = settings(addresses(2), port)
    with agent_under_test(tree, 0, configured) as head, agent_under_test(tree, 1, configured) as worker:
        context = replace(head.agent.context, switch=make_rollback(known_good_entry(), "", ""))
        head.remake(context=context)
        head.set_plan("d1", **{"args.max-model-len": "512", "image": "i:1"})
        worker.set_plan("d2", **{"args.max-model-len": "1024", "image": "i:1"})
        with running_steps(head, wait_while_blocked), running_steps(worker, wait_while_blocked):
            until(lambda: {head.report.phase, worker.report.phase} == {Phase.BLOCKED})
        for agent, own, theirs in [(head, "512", "1024"), (worker, "1024", "512")]:
            assert f"differs: args.max-model-len is {own} here and {theirs} there" in agent.report.message
            until(lambda: plan_table(agent.journal))  # noqa: B023
            rows = plan_table(agent.journal)
            assert ["args.max-model-len", own, theirs] in rows
            assert not any("image" in row for row in rows)
        assert "(this node is rolled back: " in head.report.message
        assert "(make the configuration, the image and the model the same on all nodes)" in worker.report.message


def test_plans_of_two_versions_of_sparkd_are_reported_with_the_command_to_upgrade(tree: Tree, port: int) -> None:
    configured = settings(addresses(2), port)
    with agent_under_test(tree, 0, configured) as head, agent_under_test(tree, 1, configured) as worker:
        worker.agent.reporter.report = replace(worker.report, version="0.0.1")
        head.set_plan("d1", **{"env.NCCL_DEBUG": "WARN"})
        worker.set_plan("d2")
        with running_steps(head, wait_while_blocked), running_steps(worker, wait_while_blocked):
            until(lambda: {head.report.phase, worker.report.phase} == {Phase.BLOCKED})
        for agent, own, theirs in [(head, __version__, "0.0.1"), (worker, "0.0.1", __version__)]:
            assert f"(sparkd is {own} here and {theirs} on spark" in agent.report.message
            assert "on the older: sudo apt install --only-upgrade sparkd; of a file: sudo apt" in agent.report.message


def test_a_head_that_stays_blocked_is_one_line_in_the_journal_of_a_waiting_worker(tree: Tree, port: int) -> None:
    tries: list[float] = []

    def blocked(_agent: Agent) -> None:
        tries.append(time.monotonic())
        raise BlockedError("no model")

    configured = settings(addresses(2), port)
    with agent_under_test(tree, 1, configured) as worker, running_steps(worker, wait_and_join):
        worker.set_plan("d")
        await_message(worker, "waiting for 127.0.0.1, where no sparkd runs")
        with (
            agent_under_test(tree, 0, configured) as head,
            running_steps(head, lambda agent: retry_while_blocked(agent, blocked)),
        ):
            until(lambda: len(tries) == 2)
            await_message(worker, "which is blocked: no model")
        lines = [line for line in worker.events.lines if line.startswith("cluster.contact.changed")]
        contacts = [line.partition("contact=")[2].split()[0] for line in lines]
        assert contacts.count("answers") == 1
        assert contacts.count("refused") <= 1  # none where it was the first thing known of the head


def test_another_nodes_plan_that_is_repaired_ends_no_run(head: AgentUnderTest, workers: tuple[Node, Node]) -> None:
    workers[0].publish(report(1, plan_digest="d"))
    workers[1].publish(report(2, plan_digest="another"))
    with running_steps(head, wait_while_blocked) as walk:
        until(lambda: head.report.phase is Phase.BLOCKED)
        assert "its values can't be read: HTTP 404" in head.report.message
        workers[1].publish(report(2, plan_digest="d", incarnation="restarted"))
        until(lambda: head.report.epoch != "")
        assert head.report.phase is Phase.AWAITING_PEERS
        for rank, worker in enumerate(workers, 1):
            changes = {"incarnation": "restarted"} if rank == 2 else {}
            worker.publish(report(rank, phase=Phase.LOADING, epoch=head.agent.rank_id, plan_digest="d", **changes))
        assert walk.join() is None


def test_a_difference_that_was_repaired_and_comes_back_is_logged_again(
    head: AgentUnderTest, workers: tuple[Node, Node]
) -> None:
    head.set_plan("d", **{"args.seed": "1"})
    workers[0].loop.call(workers[0].peer_api.publish_document, "/plan", dump_values({"args.seed": "2"}))
    workers[0].publish(report(1, plan_digest="another"))
    until_with(lambda: head.agent.monitor.statuses()[0].living, head)
    for times in (1, 2):
        for _ in range(2):  # once until it is repaired
            with pytest.raises(BlockedError, match="is 1 here and 2 there"):
                head.agent.differences.check(head.agent.monitor.statuses())
        assert sum(line.startswith("cluster.plan.mismatched") for line in head.events.lines) == times
        head.agent.differences.check(())


def serve(agent: Agent) -> None:
    """A run without an engine, and with a short wait after its last report."""
    try:
        wait_and_join(agent)
        agent.phase.enter(Phase.LAUNCHING)
        agent.phase.enter(Phase.LOADING)
        agent.phase.enter(Phase.SERVING)
        while True:
            agent.loop.wait(5)
    except SparkdError as error:
        agent.phase.enter(Phase.FAILED, str(error))
        agent.loop.endings.enter(Stage.END)
        agent.loop.wait_until(never, 0.5)
        raise


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_four_nodes_start_in_any_order_and_end_together_with_one_cause(
    tree: Tree, port: int, order: tuple[int, ...]
) -> None:
    configured = settings(addresses(4), port)
    with ExitStack() as stack:
        agents: dict[int, AgentUnderTest] = {}
        walks: dict[int, StepsThread] = {}
        for rank in order:
            agents[rank] = stack.enter_context(agent_under_test(tree, rank, configured))
            agents[rank].set_plan("d")
            walks[rank] = stack.enter_context(running_steps(agents[rank], serve))
            time.sleep(0.05)
        until(lambda: all(agent.report.phase is Phase.SERVING for agent in agents.values()))
        assert {agent.report.epoch for agent in agents.values()} == {agents[0].agent.rank_id}

        began = unstalled()
        walks[3].stop()
        agents[3].ended.clear()
        error = EngineEndedError("the engine ended: RuntimeError: boom")
        shutdown = threading.Thread(target=shutdown_on_error, args=(agents[3].agent, None, error), daemon=True)
        shutdown.start()
        for rank in (0, 1, 2):
            until(lambda of=rank: agents[of].report.phase is Phase.FAILED)  # type: ignore[misc]  # bound now
        assert unstalled() - began < 2
        assert shutdown.is_alive()  # its last report can be read for a while
        for rank in (0, 1, 2):
            lost = walks[rank].ended_by(PeerLostError)
            assert lost.code is ExitCode.PEER_LOST
            assert "rank 3 on spark4 (127.0.0.4) failed: the engine ended: RuntimeError: boom" in lost.reason
            assert lost.reason.startswith("rank 0 on spark1" if rank else "rank 3 on spark4")
        shutdown.join(10)


def test_a_node_whose_agent_does_not_come_back_ends_all_others(tree: Tree, port: int) -> None:
    configured = settings(addresses(3), port, agent_return_seconds=6)
    with ExitStack() as stack:
        agents = [stack.enter_context(agent_under_test(tree, rank, configured)) for rank in range(3)]
        for agent in agents:
            agent.set_plan("d")
        walks = [stack.enter_context(running_steps(agent, serve)) for agent in agents]
        until(lambda: all(agent.report.phase is Phase.SERVING for agent in agents))
        walks[2].stop()
        agents[2].agent.loop.close()
        until(lambda: agents[0].agent.monitor.trouble, 3)
        assert "the agent of rank 2 on spark3 (127.0.0.3) is away" in agents[0].agent.monitor.trouble
        assert all(agent.report.phase is Phase.SERVING for agent in agents[:2])
        assert until(lambda: all(agent.report.phase is Phase.FAILED for agent in agents[:2])) < 8
        for walk in walks[:2]:
            error = walk.ended_by(PeerLostError)
            assert "rank 2 on spark3 (127.0.0.3) is gone: 127.0.0.3 refuses connections" in error.reason
        assert [peer.contact for peer in agents[0].report.peers] == [Contact.ANSWERS, Contact.REFUSED]
        changes = [line for line in agents[0].events.lines if line.startswith("cluster.contact.changed")]
        assert changes[-1].startswith("cluster.contact.changed node=spark3 (127.0.0.3) contact=refused said=")
