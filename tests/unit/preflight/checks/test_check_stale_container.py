"""Containers that have the name of a rank, or sparkd's label."""

import pytest
from tests.tree import Tree
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.actions.images import KEPT_LABEL, container_name
from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.docker import CheckedContainer, ContainersFacts, StaleContainer
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts
from sparkd.base.state.rank_record import KnownRank
from sparkd.tools.node.sweep import find_orphans

ID = "0123456789abcdef" * 4


def named(name: str = "sparkd-rank0", *, ours: bool = False, policy: str = "no") -> ContainersFacts:
    return ContainersFacts("known", (CheckedContainer(ID, name, ours, running=False, restart_policy=policy),))


@pytest.mark.parametrize(
    ("facts", "level", "hint"),
    [
        (ContainersFacts("known", ()), Level.OK, ""),
        (ContainersFacts("away", ()), Level.SKIPPED, ""),
        (ContainersFacts("HTTP 500", ()), Level.UNKNOWN, "systemctl status docker"),
        (named(), Level.BLOCK, f"sudo docker rename sparkd-rank0 old-{ID[:12]}"),
        (named(ours=True), Level.OK, ""),
        (named(ours=True, policy="always"), Level.WARN, "sudo docker update --restart=no sparkd-rank0"),
        (named("serve", policy="unless-stopped"), Level.WARN, "sudo docker update --restart=no serve"),
        (named("serve"), Level.OK, ""),
        (named(policy="always"), Level.BLOCK, f"sudo docker rename sparkd-rank0 old-{ID[:12]}"),
    ],
)
def test_a_container_that_has_a_ranks_name_and_is_not_sparkds_blocks(
    facts: ContainersFacts, level: Level, hint: str
) -> None:
    expect(StaleContainer(plan()).judge(facts), level, text=hint, fixes=())


def container(name: str, *labels: tuple[str, str], policy: str = "no") -> ContainerFacts:
    return ContainerFacts(ID, name, labels, False, 0, "sha256:1", policy)


def test_containers_of_the_ranks_name_or_label_are_looked_at_and_no_others(tree: Tree) -> None:
    containers = (
        container("sparkd-rank0"),
        container("sparkd-rank1"),
        container("postgres", policy="always"),
        container("copy", ("io.sparkd.role", "head")),
    )
    facts = StaleContainer(plan()).probe(Host(tree.root, docker=lambda: DockerFacts(True, containers)))
    assert [container.name for container in facts.containers] == ["sparkd-rank0", "copy"]
    assert StaleContainer(plan()).probe(Host(tree.root, docker=lambda: AWAY)).docker == "away"


def test_a_container_that_keeps_an_image_is_nobodys_rank(tree: Tree) -> None:
    kept = container(container_name(f"sha256:{ID}"), (KEPT_LABEL, f"sha256:{ID}"))
    host = Host(tree.root, docker=lambda: DockerFacts(True, (kept,)))
    assert not kept.ours
    assert StaleContainer(plan()).probe(host).containers == ()
    assert StrayWorkers().probe(host).containers == ()
    assert find_orphans((kept,), None, KnownRank(), "", None) == ()


def listed(tree: Tree, state: str) -> Host:
    """A machine whose docker lists a rank of sparkd's, and fails when its details are read."""
    tree.docker_engine()
    labels = {"io.sparkd.role": "head", "io.sparkd.invocation": "of before"}
    entry = {"Id": ID, "Names": ["/sparkd-rank0"], "ImageID": "sha256:1", "Labels": labels, "State": state}
    tree.docker("/containers/json", [entry])
    message = f"RWLayer of container {ID} is unexpectedly nil"
    tree.docker(f"/containers/{ID}/json", {"message": message}, fails=True)
    return Host(tree.root)


@pytest.mark.parametrize("state", ["created", "exited", "dead"])
def test_a_container_that_a_power_cut_has_left_without_its_layer_holds_nobody_up(tree: Tree, state: str) -> None:
    host = listed(tree, state)
    (facts,) = host.docker().containers
    assert facts.ours
    assert not facts.running
    assert StaleContainer(plan()).run(host)[1].level is Level.OK, "it is removed: see stray-workers"
    assert StrayWorkers().run(host)[1].clears


def test_a_container_that_runs_and_can_not_be_described_may_be_anything(tree: Tree) -> None:
    assert listed(tree, "running").docker().error == f"GET /containers/{ID}/json: HTTP 500"
