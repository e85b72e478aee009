"""Containers that ranks have left: which agent has them, and which are removed."""

import os

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.preflight.engine_machines import (
    CGROUP,
    ID,
    NO_CONTAINERS,
    SERVE,
    SESSION,
    docker_with_container,
    engine_in_container,
    owned,
    pids_to_end,
    verdict_of,
)
from tests.unit.rank_records import rank_record
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.fixes import RemoveContainer
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.state.rank_record import GUARD, RANK_FILE, RankRecord, RankStage


def test_our_container_whose_agent_is_gone_is_removed_whole(tree: Tree) -> None:
    tree.process(10, "vllm", argv=SERVE, cgroup=CGROUP, namespace_pid=1, private_kib=1024)
    tree.process(11, "VLLM::EngineCor", parent=10, group=10, cgroup=CGROUP, private_kib=1024)
    removal = RemoveContainer(ID, "sparkd-rank0", frees_bytes=2048 * 1024)
    reason = f"container sparkd-rank0 ({ID[:12]})"
    expect(verdict_of(tree, docker_with_container()), Level.BLOCK, reason, clears=True, fixes=(removal,))


@pytest.mark.parametrize("running", [True, False])
def test_our_container_is_removed_though_no_process_of_an_engine_is_left_in_it(tree: Tree, running: bool) -> None:
    verdict = verdict_of(tree, docker_with_container(running=running))
    assert [fix.kind for fix in verdict.fixes] == ["remove-container"]
    assert verdict.clears


def test_the_owners_own_rank_is_named_and_never_touched(tree: Tree) -> None:
    owned(tree)
    engine_in_container(tree)
    verdict = verdict_of(tree, docker_with_container("alive"))
    expect(verdict, Level.BLOCK, clears=False, fixes=())
    assert verdict.reason.endswith("owns this node: pid 40 (sparkd run --role head)")


@pytest.mark.parametrize(("own", "fixes"), [(True, ["remove-container"]), (False, [])])
def test_what_a_check_of_this_agents_left_when_docker_went_away_is_removed(
    tree: Tree, own: bool, fixes: list[str]
) -> None:
    """It has the agent's label, and kept the agent from each further try."""
    owned(tree, os.getpid() if own else os.getppid())
    verdict = verdict_of(tree, docker_with_container("alive", running=False))
    assert [fix.kind for fix in verdict.fixes] == fixes
    assert verdict.clears is own


def recorded(tree: Tree, record: RankRecord, rank_id: str = "rank") -> DockerFacts:
    """A running container of the agent `dead` with this record of the rank."""
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    tree.file(RANK_FILE.path, RANK_FILE.encode(record))
    (running,) = docker_with_container().containers
    labels = (*running.labels, ("io.sparkd.rank-id", rank_id))
    return DockerFacts(True, (replace(running, labels=labels),))


def test_a_rank_belongs_to_the_agent_that_has_it_by_the_record(tree: Tree) -> None:
    owned(tree)
    tree.process(10, "tini", start_time=100, cgroup=CGROUP, namespace_pid=1)
    started = rank_record(container_id=ID, pid=10, start_time=100)
    reason = verdict_of(tree, recorded(tree, replace(started, invocation="alive"))).reason
    assert reason.endswith("owns this node: pid 40 (sparkd run --role head)")
    orphan = verdict_of(tree, recorded(tree, replace(started, invocation="dead")))
    assert [fix.kind for fix in orphan.fixes] == ["remove-container"]


def test_a_rank_that_its_agent_is_expected_back_for_is_left_alone_by_hand(tree: Tree) -> None:
    tree.process(10, "tini", start_time=100, cgroup=CGROUP, namespace_pid=1)
    tree.process(30, "sparkd-guard")
    tree.file(GUARD, "0 10 100 77 88 30 100")
    record = rank_record(invocation="dead", container_id=ID, pid=10, start_time=100, stage=RankStage.READY)
    expect(verdict_of(tree, recorded(tree, record)), Level.BLOCK, "its agent has just crashed", clears=False, fixes=())


def test_a_process_that_contradicts_the_record_is_named_and_never_touched(tree: Tree) -> None:
    owned(tree)
    docker = recorded(tree, rank_record(invocation="alive", container_id="f" * 64))
    expect(verdict_of(tree, docker), Level.UNKNOWN, "is not what was started as that", fixes=())


def test_a_broken_record_makes_nothing_a_stray(tree: Tree) -> None:
    owned(tree)
    docker = recorded(tree, rank_record())
    tree.file(RANK_FILE.path, "")
    expect(verdict_of(tree, docker), Level.UNKNOWN, "whose it is, is unknown: /run/sparkd/private/rank.json", fixes=())


def test_an_unknown_owner_makes_nothing_a_stray(tree: Tree) -> None:
    with tree.lock_held():
        expect(verdict_of(tree, docker_with_container("dead")), Level.UNKNOWN, "does not name, is unknown", fixes=())


@pytest.mark.parametrize(
    ("docker", "awaits", "hint"),
    [
        (AWAY, "docker", "sudo systemctl start docker"),
        (DockerFacts(True, (), error="no answer"), "docker to answer", "look at: systemctl status docker"),
    ],
)
def test_whose_a_container_is_waits_for_docker(tree: Tree, docker: DockerFacts, awaits: str, hint: str) -> None:
    engine_in_container(tree)
    expect(verdict_of(tree, docker), Level.UNKNOWN, awaits=awaits, hint=hint, fixes=())


def test_docker_is_not_awaited_where_something_else_blocks_too(tree: Tree) -> None:
    engine_in_container(tree)
    tree.process(30, "vllm", argv=SERVE)
    assert verdict_of(tree, AWAY).awaits == ""


def test_docker_away_alone_does_not_block(tree: Tree) -> None:
    expect(verdict_of(tree, AWAY), Level.OK, "docker is away")


def outlive_container(tree: Tree, container_id: str = ID, cgroup: str = CGROUP) -> None:
    """An engine, pids 9 and 10, outlives the first process of the rank on record."""
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    tree.file(RANK_FILE.path, RANK_FILE.encode(rank_record(container_id=container_id, pid=8)))
    tree.process(9, "vllm", argv=SERVE, uid=1000, cgroup=cgroup)
    tree.process(10, "VLLM::EngineCor", parent=9, group=9, uid=1000, cgroup=cgroup)


def own_node(tree: Tree, invocation: str) -> None:
    tree.process(40, "python3")
    tree.owner(40, invocation)


def test_what_outlives_the_container_of_a_rank_whose_agent_is_gone_is_ended(tree: Tree) -> None:
    outlive_container(tree)
    assert pids_to_end(verdict_of(tree, NO_CONTAINERS)) == [9, 10]
    own_node(tree, "next")
    assert pids_to_end(verdict_of(tree, NO_CONTAINERS)) == [9, 10], "the next agent is not the rank's"


def test_what_outlives_the_container_of_a_rank_is_left_to_its_own_agent(tree: Tree) -> None:
    outlive_container(tree)
    own_node(tree, "agent")
    assert pids_to_end(verdict_of(tree, NO_CONTAINERS)) == []


@pytest.mark.parametrize(
    ("container_id", "cgroup", "listed"),
    [
        pytest.param("f" * 64, CGROUP, NO_CONTAINERS, id="of another container"),
        pytest.param("", CGROUP, NO_CONTAINERS, id="no container is recorded"),
        pytest.param(ID, SESSION, NO_CONTAINERS, id="of that user, outside of the container"),
        pytest.param(ID, CGROUP, docker_with_container(ours=False), id="of a container that docker has"),
        pytest.param(ID, CGROUP, AWAY, id="without docker"),
    ],
)
def test_what_is_not_proven_to_outlive_the_ranks_container_is_left(
    tree: Tree, container_id: str, cgroup: str, listed: DockerFacts
) -> None:
    outlive_container(tree, container_id, cgroup)
    assert pids_to_end(verdict_of(tree, listed)) == []
