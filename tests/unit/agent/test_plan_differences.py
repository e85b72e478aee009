"""Plans that differ block the nodes, which name the differences and what to do."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_steps import running_steps, wait_while_blocked
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings, until_with
from tests.unit.known_good_entries import known_good_entry
from tests.unit.nodes import Node, report, until

from sparkd import __version__
from sparkd.base.lib.errors import BlockedError
from sparkd.base.plan.agreement import dump_values
from sparkd.base.state.switch import make_rollback
from sparkd.base.status.model import Phase


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
        assert head.report.hint.startswith("this node is rolled back: ")
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


def test_another_nodes_plan_that_is_repaired_ends_no_run(
    planned_head: AgentUnderTest, workers: tuple[Node, Node]
) -> None:
    workers[0].publish(report(1, plan_digest="d"))
    workers[1].publish(report(2, plan_digest="another"))
    with running_steps(planned_head, wait_while_blocked) as walk:
        until(lambda: planned_head.report.phase is Phase.BLOCKED)
        assert "its values can't be read: HTTP 404" in planned_head.report.message
        workers[1].publish(report(2, plan_digest="d", incarnation="restarted"))
        until(lambda: planned_head.report.epoch != "")
        assert planned_head.report.phase is Phase.AWAITING_PEERS
        for rank, worker in enumerate(workers, 1):
            changes = {"incarnation": "restarted"} if rank == 2 else {}
            worker.publish(
                report(rank, phase=Phase.LOADING, epoch=planned_head.agent.rank_id, plan_digest="d", **changes)
            )
        assert walk.join() is None


def test_a_difference_that_was_repaired_and_comes_back_is_logged_again(
    planned_head: AgentUnderTest, workers: tuple[Node, Node]
) -> None:
    planned_head.set_plan("d", **{"args.seed": "1"})
    workers[0].loop.call(workers[0].peer_api.publish_document, "/plan", dump_values({"args.seed": "2"}))
    workers[0].publish(report(1, plan_digest="another"))
    until_with(lambda: planned_head.agent.monitor.statuses()[0].living, planned_head)
    for times in (1, 2):
        for _ in range(2):  # once until it is repaired
            with pytest.raises(BlockedError, match="is 1 here and 2 there"):
                planned_head.agent.differences.check(planned_head.agent.monitor.statuses())
        assert sum(line.startswith("cluster.plan.mismatched") for line in planned_head.events.lines) == times
        planned_head.agent.differences.check(())
