from __future__ import annotations

import json
import os

import pytest
from tests.unit.conftest import Tree

from sparkd.commands.sweep import find_orphans
from sparkd.host import Host
from sparkd.host.docker_facts import ContainerFacts, DockerFacts

MINE, OTHERS, OLD = "a" * 32, "b" * 32, "c" * 32


def container(name: str, *labels: tuple[str, str]) -> ContainerFacts:
    return ContainerFacts(name * 64, name, labels, True, 10, "sha256:i", "no")


def ours(name: str, invocation: str, role: str = "head") -> ContainerFacts:
    return container(name, ("io.sparkd.role", role), ("io.sparkd.invocation", invocation))


ALL = (ours("1", MINE), ours("2", OTHERS), ours("3", OLD, "worker"), container("4"), container("5", ("role", "head")))


def machine(tree: Tree, owner: str | None) -> Host:
    """`owner`: the invocation written in a lock that is held; None: nobody holds it."""
    lock = tree.file(
        "/run/sparkd/hands.lock", json.dumps({"pid": 7, "command": "sparkd run", "invocation": owner or ""})
    )
    found = lock.stat()
    identity = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    tree.file("/proc/locks", f"1: FLOCK  ADVISORY  WRITE 7 {identity} 0 EOF\n" if owner is not None else "")
    return Host(tree.root, docker=lambda: DockerFacts(running=True, containers=ALL))


def names(found: tuple[ContainerFacts, ...]) -> list[str]:
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("owner", "invocation", "role", "orphans"),
    [
        (None, MINE, None, ["1"]),
        (None, "", None, ["1", "2", "3"]),
        (OTHERS, MINE, None, ["1"]),
        (OTHERS, "", None, ["1", "3"]),
        (MINE, MINE, None, []),
        (None, "", "worker", ["3"]),
        ("", "", None, []),
    ],
)
def test_only_containers_of_sparkds_whose_owner_is_gone_are_orphans(
    tree: Tree, owner: str | None, invocation: str, role: str | None, orphans: list[str]
) -> None:
    assert names(find_orphans(machine(tree, owner), invocation, role)) == orphans
