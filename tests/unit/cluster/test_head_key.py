"""Who has the cluster's key and the head's address, and not the head's own key, chooses nothing that a worker runs."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.awaiting_workers import awaiting
from tests.unit.agent_steps import running_steps
from tests.unit.cluster.head_documents import encode, good_document, keep_document, publish, send, written_files
from tests.unit.cluster_nodes import (
    HEAD_KEY,
    AgentUnderTest,
    addresses,
    agent_under_test,
    base_under_test,
    following,
    public_half,
    running,
    settings,
    until_with,
)
from tests.unit.nodes import KEY, NEW_KEY, node, report, until
from tests.unit.verdicts import present

from sparkd.agent.daemon.head_config import check_head, share_config
from sparkd.agent.daemon.head_follower import LOOK_SECONDS
from sparkd.agent.daemon.serving import follow_head
from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import KeyRing, sign_answer
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import BlockedError, HeadRefusedError, OutdatedPlanError, SparkdError
from sparkd.base.state.shared_config import FILE
from sparkd.base.status.model import FindingReport, Phase

NODES = addresses(2)
OTHER_HEAD = b"i" * 32
PUBLIC = "/etc/sparkd/head.pub"
COMMANDS = ("sudo sparkd init --invite", "sudo sparkd init --join")


def changed_document(port: int) -> bytes:
    """Another good document than the one in use."""
    document = good_document(port)
    document["engine"]["env"] = {"LD_PRELOAD_NOT": "1"}
    return encode(document)


def warning(worker: AgentUnderTest) -> FindingReport | None:
    return next((finding for finding in worker.report.findings if finding.id == "head-key"), None)


def refusals(worker: AgentUnderTest) -> list[str]:
    return [line for line in worker.events.lines if line.startswith("cluster.config.refused")]


@contextmanager
def worker_of(tree: Tree, port: int, *, public: str | None = "as joined") -> Iterator[AgentUnderTest]:
    """A worker that runs a good document. `public`: the file of the head's public key; None for none."""
    keep_document(tree, encode(good_document(port)))
    with agent_under_test(tree, 1, following(NODES, port)) as worker:
        path = tree.root / f"node1{PUBLIC}"
        if public is None:
            path.unlink()
        elif public != "as joined":
            path.write_text(public)
        yield worker


class LateClock:
    """The clock, with seconds that the test lets pass."""

    passed_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed_seconds


def set_clock(worker: AgentUnderTest) -> LateClock:
    clock = LateClock()
    worker.remake(follower=replace(present(worker.agent.follower), clock=clock))
    return clock


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        ((), "which does not sign it as a head"),
        ((OTHER_HEAD,), "which is not the head that this node has joined"),
        ((KEY,), "which is not the head that this node has joined"),
        ((OTHER_HEAD,) * 4 + (HEAD_KEY,), "which is not the head that this node has joined"),
    ],
)
def test_another_node_with_the_clusters_key_changes_nothing_and_the_worker_continues(
    tree: Tree, port: int, signs: tuple[bytes, ...], reason: str
) -> None:
    """A head of an earlier version is such a node: it signs nothing."""
    with worker_of(tree, port) as worker, node(NODES[0], port=port, head_keys=signs) as head:
        before = worker.agent.plan.digest
        send(head, worker, changed_document(port))
        share_config(worker.agent)
        assert FILE.name not in written_files(worker.agent.actions)
        assert worker.agent.plan.digest == before
        (line,) = refusals(worker)
        assert f"reason=no configuration is taken of {NODES[0]}, {reason}" in line
        assert all(command in line for command in COMMANDS)
        finding = present(warning(worker))
        assert finding.level == "warn"
        assert reason in finding.reason


@pytest.mark.parametrize("sent", [b"{", b"[" * 100_000, b"\xff\xfe"])
def test_a_document_that_the_head_has_not_signed_is_not_even_read(tree: Tree, port: int, sent: bytes) -> None:
    with worker_of(tree, port) as worker, node(NODES[0], port=port) as head:
        send(head, worker, sent)
        assert all("can't be read" not in line for line in refusals(worker))


def test_a_signature_is_for_one_request_and_one_document(tree: Tree) -> None:
    """The MAC is of both, and of the head's address: what a head has sent before is worthless later."""
    tree.file(PUBLIC, f"{public_half(HEAD_KEY).hex()}\n", 0o600)
    files, signed = Files(str(tree.root), os.getuid()), sign_answer(KEY, "1", NODES[0], "/config", 200, b"old")
    signature = head_key.sign((HEAD_KEY,), signed)
    head_key.verify(files, PUBLIC, NODES[0], signed, signature)
    for other in (
        sign_answer(KEY, "2", NODES[0], "/config", 200, b"old"),
        sign_answer(KEY, "1", NODES[1], "/config", 200, b"old"),
        sign_answer(KEY, "1", NODES[0], "/config", 200, b"new"),
    ):
        with pytest.raises(HeadRefusedError, match="not the head that this"):
            head_key.verify(files, PUBLIC, NODES[0], other, signature)


def test_a_node_that_joined_before_continues_and_is_fixed_by_a_join_without_a_restart(tree: Tree, port: int) -> None:
    """It has no public key of its head."""
    with worker_of(tree, port, public=None) as worker, node(NODES[0], port=port, head_keys=(HEAD_KEY,)) as head:
        clock = set_clock(worker)
        send(head, worker, encode(good_document(port)))
        finding = present(warning(worker))
        assert "this node has no public key of its head" in finding.reason
        assert all(command in finding.hint for command in COMMANDS)
        send(head, worker, changed_document(port))
        assert FILE.name not in written_files(worker.agent.actions)
        assert len(refusals(worker)) == 1, "logged once"
        tree.file(f"/node1{PUBLIC}", f"{public_half(HEAD_KEY).hex()}\n", 0o600)
        clock.passed_seconds = LOOK_SECONDS
        with pytest.raises(OutdatedPlanError):
            check_head(worker.agent)
        assert written_files(worker.agent.actions)[FILE.name].encode() == changed_document(port)


def test_a_worker_whose_rank_runs_warns_until_it_has_joined(tree: Tree, port: int) -> None:
    with (
        worker_of(tree, port, public=None) as worker,
        node(NODES[0], port=port) as head,
        running(worker.agent) as (rank, _),
    ):
        clock = set_clock(worker)
        with running_steps(worker, lambda agent: follow_head(agent, rank)) as follows:
            head.publish(report(0, phase=Phase.SERVING))
            until(lambda: warning(worker) and worker.report.phase is Phase.SERVING)
            tree.file(f"/node1{PUBLIC}", f"{public_half(HEAD_KEY).hex()}\n", 0o600)
            clock.passed_seconds = LOOK_SECONDS
            worker.agent.loop.wake()
            until(lambda: warning(worker) is None)
            assert not follows.over


def test_the_remedy_for_plans_that_differ_without_the_heads_key_is_the_join(tree: Tree, port: int) -> None:
    with worker_of(tree, port, public=None) as worker, node(NODES[0], port=port) as head:
        worker.set_plan("d")
        send(head, worker, encode(good_document(port)))
        head.publish(report(0, plan_digest="another"))
        until_with(lambda: (living := worker.agent.monitor.statuses()[0].living) and living.plan_digest, worker)
        with pytest.raises(BlockedError, match=r"the plan of spark1 .* differs") as raised:
            worker.agent.differences.check(worker.agent.monitor.statuses())
        assert raised.value.hint == head_key.REMEDY


def test_a_worker_without_a_document_takes_none_of_another_head_and_reports_why(tree: Tree, port: int) -> None:
    with (
        base_under_test(tree, 1, following(NODES, port)) as base,
        node(NODES[0], port=port, head_keys=(OTHER_HEAD,)) as head,
    ):
        publish(head, changed_document(port))
        written = written_files(base.actions)
        with awaiting(base) as raised:
            until(lambda: "is not the head that this node" in written.get("report.json", ""))
        assert type(raised[0]) is SparkdError, "the test ends it"
        shown = json.loads(written["report.json"])
        assert shown["phase"] == "blocked"
        assert all(command in shown["message"] for command in COMMANDS)
        assert FILE.name not in written


def test_a_configuration_that_is_only_claimed_to_be_new_restarts_nothing(tree: Tree, port: int) -> None:
    """A report is not signed by the head's own key: who has the cluster's can name any digest, and relay the rest."""
    with worker_of(tree, port) as worker, node(NODES[0], port=port, head_keys=(HEAD_KEY,)) as head:
        head.loop.call(head.peer_api.publish_document, "/config", encode(good_document(port)))
        head.publish(report(0, config_digest="e" * 64))
        follower = present(worker.agent.follower)
        until_with(lambda: (heard := follower.head.status.living) and heard.config_digest == "e" * 64, worker)
        check_head(worker.agent)
        assert FILE.name not in written_files(worker.agent.actions)
        assert refusals(worker) == []


def test_a_kept_document_that_is_refused_is_reported_with_that_reason_and_not_as_a_missing_key(
    tree: Tree, port: int
) -> None:
    """An upgrade leaves such a pair: it joined before there were keys of heads."""
    refused = good_document(port)
    refused["recipe"]["image"]["ref"] = "evil/image:1"
    keep_document(tree, encode(refused))
    with base_under_test(tree, 1, following(NODES, port)) as base, node(NODES[0], port=port) as head:
        (tree.root / f"node1{PUBLIC}").unlink()
        publish(head, encode(refused))
        written = written_files(base.actions)
        with awaiting(base):
            until(lambda: "evil/image:1" in written.get("report.json", ""))
        assert "public key" not in json.loads(written["report.json"])["message"]


@pytest.mark.parametrize("joined_with", [HEAD_KEY, OTHER_HEAD])
def test_while_a_head_changes_its_key_workers_with_the_old_and_the_new_one_follow(
    tree: Tree, port: int, joined_with: bytes
) -> None:
    with (
        worker_of(tree, port, public=f"# new\n{public_half(joined_with).hex()}\n") as worker,
        node(NODES[0], port=port, head_keys=(OTHER_HEAD, HEAD_KEY)) as head,
        pytest.raises(OutdatedPlanError),
    ):
        send(head, worker, changed_document(port))


def test_a_rotated_cluster_key_leaves_the_heads_own_in_force(tree: Tree, port: int) -> None:
    with worker_of(tree, port) as worker:
        for rank in (0, 1):
            tree.file(f"/node{rank}/etc/sparkd/cluster.key", f"{NEW_KEY.hex()}\n{KEY.hex()}\n", 0o600)
        with (
            node(NODES[0], port=port, keys=(NEW_KEY, KEY), head_keys=(HEAD_KEY,)) as head,
            pytest.raises(OutdatedPlanError),
        ):
            send(head, worker, changed_document(port))


def test_a_head_signs_with_a_key_that_is_made_while_it_runs(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 0, settings(NODES, port)) as head:
        (tree.root / "node0/etc/sparkd/head.key").unlink()
        share_config(head.agent)
        with worker_of(tree, port) as worker:
            follower = present(worker.agent.follower)
            until_with(lambda: follower.head.status.living, worker, head)

            def fetched() -> dict[str, str]:
                answers = []

                async def fetch() -> None:
                    answers.append(await follower.head.fetch("/config"))

                worker.agent.loop.spawn(fetch())
                until_with(lambda: bool(answers), worker, head)
                return dict(answers[0].headers)

            name = head_key.HEADER.lower()
            until(lambda: name not in fetched(), 5)
            tree.file("/node0/etc/sparkd/head.key", f"{HEAD_KEY.hex()}\n", 0o600)
            until(lambda: name in fetched(), 5)


def ring(tree: Tree, troubles: list[str]) -> KeyRing:
    path = "/etc/sparkd/head.key"
    return KeyRing(Files(str(tree.root), os.getuid()), path, troubles.append, optional=True)


def test_a_head_without_a_key_of_its_own_starts_and_one_that_others_may_read_is_reported_and_not_used(
    tree: Tree,
) -> None:
    troubles: list[str] = []
    assert ring(tree, troubles).keys() == ()
    assert troubles == []
    tree.file("/etc/sparkd/head.key", f"{KEY.hex()}\n", 0o644)
    assert ring(tree, troubles).keys() == ()
    assert "mode 0644, needed is 0600" in troubles[0]


@pytest.mark.parametrize(
    ("text", "mode"), [("", 0o600), ("x\n", 0o600), (f"{public_half(HEAD_KEY).hex()}\n", 0o644), ("ff" * 32, 0o600)]
)
def test_a_public_key_that_can_not_be_used_proves_nothing_and_the_hint_is_to_join(
    tree: Tree, text: str, mode: int
) -> None:
    tree.file(PUBLIC, text, mode)
    signature = head_key.sign((HEAD_KEY,), "m")
    with pytest.raises(HeadRefusedError) as refused:
        head_key.verify(Files(str(tree.root), os.getuid()), PUBLIC, NODES[0], "m", signature)
    assert all(command in refused.value.hint for command in COMMANDS)


def test_where_a_public_key_can_not_be_read_the_hint_is_to_look_at_it() -> None:
    """EIO, as of a share whose server is away."""
    signature = head_key.sign((HEAD_KEY,), "m")
    with pytest.raises(HeadRefusedError, match="Input/output error") as refused:
        head_key.verify(Files(owner_uid=os.getuid()), "/proc/self/mem", NODES[0], "m", signature)
    assert refused.value.hint == "ls -l /proc/self/mem"


@pytest.mark.parametrize("signature", ["zz", "00", "00" * 64, "é", f"{'00' * 64} " * 1000])
def test_a_text_that_is_no_signature_is_refused(tree: Tree, signature: str) -> None:
    tree.file(PUBLIC, f"{public_half(HEAD_KEY).hex()}\n", 0o600)
    with pytest.raises(HeadRefusedError):
        head_key.verify(Files(str(tree.root), os.getuid()), PUBLIC, NODES[0], "m", signature)
