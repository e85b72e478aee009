"""One configuration: a head serves what it runs, and a worker's agent takes it. Real agents on loopback addresses."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.tree import Tree
from tests.unit.agent.awaiting_workers import awaiting
from tests.unit.agent_steps import running_steps, wait_and_join, wait_while_blocked
from tests.unit.cluster_nodes import (
    AgentUnderTest,
    MemoryActions,
    addresses,
    agent_under_test,
    base_under_test,
    following,
    running,
    settings,
    until_with,
)
from tests.unit.nodes import until

from sparkd.agent.daemon.head_config import report_followed, share_config
from sparkd.agent.daemon.serving import follow_head
from sparkd.base.config.settings import Engine
from sparkd.base.lib.errors import BlockedError, OutdatedPlanError
from sparkd.base.recipes.reach import HEAD_FILES
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import BACKOFF_SECONDS, LaunchHistory
from sparkd.base.state.shared_config import FILE
from sparkd.base.status.model import Contact, NodeReport, Phase

NODES = addresses(2)


@contextmanager
def head_of(tree: Tree, port: int, incarnation: str = "head", **engine: object) -> Iterator[AgentUnderTest]:
    """A head that shares its configuration. `engine`: what that has in its section engine."""
    configured = settings(NODES, port)
    changed = Engine.model_validate({**configured.engine.model_dump(), **engine})
    with agent_under_test(tree, 0, configured.model_copy(update={"engine": changed}), incarnation) as head:
        share_config(head.agent)
        yield head


def written(actions: object) -> dict[str, str]:
    assert isinstance(actions, MemoryActions)
    return actions.written


def report_of_worker(head: AgentUnderTest) -> NodeReport | None:
    return head.agent.monitor.statuses()[0].report


def fetch_config(tree: Tree, port: int, head: AgentUnderTest) -> None:
    """Let a worker wait until it has the head's configuration, which is on its disk then."""
    with base_under_test(tree, 1, following(NODES, port)) as base, awaiting(base) as raised:
        until_with(lambda: raised, head)
        assert type(raised[0]) is OutdatedPlanError
        tree.file(f"/node1{FILE.path}", written(base.actions)[FILE.name], 0o600)


def test_a_worker_with_nothing_but_its_nodes_runs_the_plan_of_its_head(tree: Tree, port: int) -> None:
    tree.file("/node1/etc/sparkd/api-key", "k", 0o600)
    secrets = {"VLLM_API_KEY": str(tree.file("/node0/etc/sparkd/api-key", "k", 0o600))}
    with head_of(tree, port, env={"A": "b"}, secrets=secrets, args={"max-model-len": 77}) as head:
        fetch_config(tree, port, head)
        with agent_under_test(tree, 1, following(NODES, port)) as worker:
            report_followed(
                worker.agent, {"engine.image": "a file", "engine.secrets.A": "a file", "cluster.nodes": "a file"}
            )
            assert worker.agent.plan.digest == head.agent.plan.digest
            assert ("A", "b") in worker.agent.plan.env
            assert worker.agent.plan.secrets == ()
            assert worker.report.config_digest == head.report.config_digest != ""
            lines = [line for line in worker.events.lines if line.startswith("cluster.config.")]
            assert lines[0].startswith("cluster.config.followed head=127.0.0.1")
            assert "keys=['engine.image']" in lines[1]
            head.set_plan("d")
            worker.set_plan("d")
            with running_steps(head, wait_and_join), running_steps(worker, wait_and_join) as joins:
                assert joins.join() is None


@contextmanager
def follower_of(tree: Tree, port: int, wanted: bool | None, *, permits: bool) -> Iterator[AgentUnderTest]:
    """A worker whose head's recipe has this `no_new_privileges`. `permits`: its own `cluster.allow.privileged`."""
    with head_of(tree, port) as head:
        fetch_config(tree, port, head)
    file = tree.root / f"node1{FILE.path}"
    document = json.loads(file.read_text())
    document["recipe"].setdefault("container", {})["no_new_privileges"] = wanted
    file.write_text(json.dumps(document))
    with agent_under_test(tree, 1, following(NODES, port, allow={"privileged": permits})) as worker:
        report_followed(worker.agent, {})
        yield worker


def overridden(worker: AgentUnderTest) -> list[str]:
    return [line for line in worker.events.lines if line.startswith("cluster.config.overridden")]


def test_a_right_of_the_heads_recipe_that_this_node_does_not_permit_is_in_its_journal(tree: Tree, port: int) -> None:
    with follower_of(tree, port, wanted=False, permits=False) as worker:
        assert worker.agent.plan.container.keeps_rights
        (line,) = overridden(worker)
    assert "container.no_new_privileges" in line
    assert "cluster.allow.privileged = true" in line


def test_a_right_of_the_heads_recipe_that_this_node_permits_is_given(tree: Tree, port: int) -> None:
    with follower_of(tree, port, wanted=False, permits=True) as worker:
        assert not worker.agent.plan.container.keeps_rights
        assert overridden(worker) == []


@pytest.mark.parametrize("permits", [False, True])
@pytest.mark.parametrize("wanted", [None, True])
def test_a_right_that_the_heads_recipe_does_not_want_is_not_given(
    tree: Tree, port: int, wanted: bool | None, permits: bool
) -> None:
    with follower_of(tree, port, wanted, permits=permits) as worker:
        assert worker.agent.plan.container.keeps_rights
        assert overridden(worker) == []


def test_files_of_the_head_are_kept_for_root_and_old_ones_removed(tree: Tree, port: int) -> None:
    script = str(tree.file("/script.sh", 'exec "$@"', 0o600))
    tree.file(f"/node0{script}", 'exec "$@"', 0o600)  # as the head's agent sees it
    with head_of(tree, port, script=script) as head:
        fetch_config(tree, port, head)
    folder = tree.folder(f"/node1{HEAD_FILES}")
    folder.chmod(0o755)
    old = tree.file(f"/node1{HEAD_FILES}/old", "x")
    tree.folder(f"/node1{HEAD_FILES}/a-folder")  # of somebody's: it holds up no start
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        share_config(worker.agent)
        kept = tree.root / f"node1{worker.agent.plan.user_script}"
        assert kept.read_text() == 'exec "$@"'
        assert not old.exists()
        assert kept.stat().st_mode & 0o777 == 0o644
        assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_files_of_the_head_that_could_not_be_kept_block_and_each_try_writes_them_again(tree: Tree, port: int) -> None:
    script = str(tree.file("/script.sh", 'exec "$@"', 0o600))
    tree.file(f"/node0{script}", 'exec "$@"', 0o600)
    with head_of(tree, port, script=script) as head:
        fetch_config(tree, port, head)
    in_the_way = tree.file(f"/node1{HEAD_FILES}", "")
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        report_followed(worker.agent, {})
        kept = tree.root / f"node1{worker.agent.plan.user_script}"
        for _ in range(2):
            with pytest.raises(BlockedError, match="the files of the head can't be kept: ") as blocked:
                share_config(worker.agent)
            assert "sudo dmesg" in blocked.value.hint
        assert sum("state.write.failed file=head-files" in line for line in worker.events.lines) == 1
        in_the_way.unlink()
        share_config(worker.agent)
        assert kept.read_text() == 'exec "$@"'


def test_a_head_that_wants_too_much_sees_why_its_worker_is_blocked(tree: Tree, port: int) -> None:
    with (
        head_of(tree, port, image="evil/image:1") as head,
        base_under_test(tree, 1, following(NODES, port, allow={"images": ["good/"]})) as base,
        awaiting(base) as raised,
    ):
        until_with(lambda: (shown := report_of_worker(head)) and shown.phase is Phase.BLOCKED, head)
        shown = report_of_worker(head)
        assert shown is not None and not raised
        assert "wants image evil/image:1: cluster.allow.images permits good/" in shown.message
        assert shown.hint and f"({shown.hint})" in shown.message
        assert FILE.name not in written(base.actions)


def test_a_worker_without_a_configuration_reports_that_it_waits_for_its_head(tree: Tree, port: int) -> None:
    with base_under_test(tree, 1, following(NODES, port)) as base, awaiting(base):
        until(lambda: "no configuration of the head 127.0.0.1" in written(base.actions).get("report.json", ""))
        report = json.loads(written(base.actions)["report.json"])
        assert report["phase"] == "awaiting-peers"
        assert (report["rank"], report["hint"]) == (1, "")


def test_a_worker_that_waits_restarts_with_what_its_head_has_changed(tree: Tree, port: int) -> None:
    with head_of(tree, port) as head:
        fetch_config(tree, port, head)
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        worker.set_plan("d")
        with running_steps(worker, wait_while_blocked) as waits, head_of(tree, port, "again", env={"NEW": "1"}) as head:
            until_with(lambda: waits.over, head)
            assert isinstance(waits.join(), OutdatedPlanError)
        assert worker.report.plan_digest == "", "its head compares no plan with one that is over"
        assert json.loads(written(worker.agent.actions)[FILE.name])["engine"]["env"] == {"NEW": "1"}


def test_a_worker_that_waits_after_failures_of_a_plan_takes_another_one_of_its_head_at_once(
    tree: Tree, port: int
) -> None:
    with head_of(tree, port) as head:
        fetch_config(tree, port, head)
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        failures = LaunchHistory({worker.agent.plan.backoff_key: len(BACKOFF_SECONDS) - 1})
        tree.file(f"/node1{launch_history.FILE.path}", launch_history.FILE.encode(failures))
        with (
            running_steps(worker, lambda agent: agent.backoff.wait()) as waits,
            head_of(tree, port, "again", env={"NEW": "1"}) as again,
        ):
            until_with(lambda: waits.over, again)
            assert isinstance(waits.join(), OutdatedPlanError)


def test_a_plan_that_the_head_chooses_again_is_tried_however_often_it_failed_here(tree: Tree, port: int) -> None:
    with head_of(tree, port, env={"NEW": "1"}) as head:
        failures = LaunchHistory({head.agent.plan.backoff_key: len(BACKOFF_SECONDS), "another": 1})
        tree.file(f"/node1{launch_history.FILE.path}", launch_history.FILE.encode(failures))
        with base_under_test(tree, 1, following(NODES, port)) as base, awaiting(base) as raised:
            until_with(lambda: raised, head)
            history = launch_history.FILE.decode(written(base.actions)[launch_history.FILE.name].encode())
    assert history.failures == {"another": 1}


def test_a_rank_that_runs_is_not_ended_by_another_configuration(tree: Tree, port: int) -> None:
    with head_of(tree, port) as head:
        fetch_config(tree, port, head)
        with (
            agent_under_test(tree, 1, following(NODES, port)) as worker,
            running(worker.agent) as (rank, _),
            running_steps(worker, lambda agent: follow_head(agent, rank)) as follows,
        ):
            head.agent.reporter.update(phase=Phase.SERVING, config_digest="another")
            until_with(lambda: worker.report.phase is Phase.SERVING, head)
            assert not follows.over


def test_a_head_that_is_down_does_not_keep_a_worker_from_its_last_configuration(tree: Tree, port: int) -> None:
    with head_of(tree, port) as head:
        fetch_config(tree, port, head)
        digest = head.agent.plan.digest
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        share_config(worker.agent)
        until_with(lambda: worker.agent.monitor.statuses()[0].contact is not Contact.UNHEARD, worker)
        share_config(worker.agent)
        assert worker.agent.plan.digest == digest
