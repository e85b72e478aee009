"""Each node waits until all are ready; then the head calls, and the ranks start in its epoch."""

import json
import logging
import time
from functools import partial

import pytest
from tests.tree import Tree
from tests.unit.agent_steps import await_message, running_steps, wait_and_join
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings
from tests.unit.nodes import Node, node, report, until

from sparkd.agent.daemon.blocked import retry_while_blocked
from sparkd.agent.daemon.context import Agent
from sparkd.base.lib.errors import BlockedError, NotReadyError, PeerLostError
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.redaction import Redaction
from sparkd.base.status.model import NodeReport, Phase


def test_a_worker_waits_for_the_heads_call_and_joins_its_epoch(planned_worker: AgentUnderTest, port: int) -> None:
    with running_steps(planned_worker, wait_and_join) as walk:
        await_message(planned_worker, "waiting for 127.0.0.1, where no sparkd runs")
        until(lambda: planned_worker.notifier.up, 1)  # systemd holds it to be up, just after that message
        with node("127.0.0.1", port=port) as head:
            for sent, awaited in [
                (report(0, phase=Phase.PREFLIGHT), "spark1 (127.0.0.1), which is preflight"),
                (report(0, phase=Phase.SERVING, epoch="old", plan_digest="d"), "spark1 (127.0.0.1), which is serving"),
                (report(0, plan_digest="d"), "spark1 (127.0.0.1) to call its workers"),
                (report(0, epoch="e"), "spark1 (127.0.0.1) to call its workers"),  # of a plan not known yet
            ]:
                head.publish(sent)
                await_message(planned_worker, f"waiting for {awaited}")
                assert planned_worker.report.phase is Phase.AWAITING_PEERS
                assert planned_worker.report.epoch == ""
            assert not walk.over
            head.publish(report(0, epoch="e", plan_digest="d"))
            assert until(lambda: walk.over) < 1
            assert walk.error is None
            assert planned_worker.report.epoch == "e"


def test_lines_in_json_carry_the_epoch_once_it_is_known(
    planned_worker: AgentUnderTest, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    planned_worker.agent.log.configure(as_json=True, level="info")
    events = ProcessLog.events(planned_worker.agent.log, Redaction())
    with node("127.0.0.1", port=port) as head:
        head.publish(report(0, epoch="e", plan_digest="d"))
        events.info("a.b.c")
        with running_steps(planned_worker, wait_and_join) as walk:
            assert walk.join() is None
        events.info("a.b.c")
    until(lambda: planned_worker.journal.read_bytes().count(b"\n") == 2)
    before, after = (json.loads(line.removeprefix("<6>")) for line in planned_worker.journal.read_text().splitlines())
    assert "epoch" not in before
    assert after["epoch"] == "e"


def test_a_head_calls_when_all_workers_wait_and_continues_when_their_ranks_run(
    planned_head: AgentUnderTest, workers: tuple[Node, Node]
) -> None:
    first, second = workers
    with running_steps(planned_head, wait_and_join) as walk:
        first.publish(report(1, plan_digest="d"))
        for sent in (
            report(2, phase=Phase.PREFLIGHT),
            report(2, phase=Phase.COOLING, plan_digest="d"),
            report(2, phase=Phase.SERVING, epoch="old", plan_digest="d"),  # its rank of an older launch still runs
            report(2, phase=Phase.AWAITING_PEERS, epoch="old", plan_digest="d"),
        ):
            second.publish(sent)
            await_message(planned_head, f"waiting for spark3 (127.0.0.3), which is {sent.phase.value}")
            assert planned_head.report.epoch == ""
        second.publish(report(2, plan_digest="d"))
        until(lambda: planned_head.report.epoch == planned_head.agent.rank_id)
        first.publish(report(1, phase=Phase.LOADING, epoch=planned_head.agent.rank_id, plan_digest="d"))
        second.publish(report(2, phase=Phase.LAUNCHING, epoch=planned_head.agent.rank_id, plan_digest="d"))
        await_message(planned_head, "waiting for the rank of spark3 (127.0.0.3), which is launching")
        time.sleep(0.3)
        assert not walk.over
        second.publish(report(2, phase=Phase.LOADING, epoch=planned_head.agent.rank_id, plan_digest="d"))
        assert until(lambda: walk.over) < 1
        assert walk.error is None


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (report(2, phase=Phase.LAUNCHING, epoch="another", plan_digest="d"), "belongs to another launch"),
        (report(2, phase=Phase.BLOCKED, plan_digest="d", message="62 GB, 96 needed"), "is blocked: 62 GB, 96 needed"),
        (report(2, incarnation="new", plan_digest="d"), "has restarted"),
    ],
)
def test_a_worker_that_is_lost_after_the_call_ends_the_head(
    planned_head: AgentUnderTest, workers: tuple[Node, Node], sent: NodeReport, reason: str
) -> None:
    for rank, worker in enumerate(workers, 1):
        worker.publish(report(rank, plan_digest="d"))
    with running_steps(planned_head, wait_and_join) as walk:
        until(lambda: planned_head.report.epoch != "")
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
