"""Fixtures of tests that need booted nodes. They need root, and say so rather than skip."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.bed import Bed, Node, results
from tests.bed.sparkd_node import SparkdNode
from tests.bed.trial import Result


class MakeNode(Protocol):
    def __call__(self, suite: str, package: Path | None = None) -> Node: ...


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    with Bed() as made:
        yield made


@pytest.fixture(scope="session")
def record() -> Callable[[Result], None]:
    """Put a row of the fault table into build/faults.json and build/faults.md, which these tests recreate."""
    rows: list[Result] = []

    def put(row: Result) -> None:
        rows.append(row)
        results.write(rows)

    return put


@pytest.fixture(scope="module")
def make_node(bed: Bed) -> Iterator[MakeNode]:
    """`make_node("trixie", package)`: one more node with a fresh disk, the package on it where one is named, booted;
    gone after the module."""
    made: list[Node] = []

    def make(suite: str, package: Path | None = None) -> Node:
        taken = {node.name for node in bed.nodes}
        name = next(name for name in (f"spark{index}" for index in range(1, 9)) if name not in taken)
        node = bed.node(name, suite, package=package)
        made.append(node)
        assert node.boot() == "running", node.sh("systemctl --failed --no-legend").stdout
        return node

    yield make
    for node in made:
        bed.remove(node)


@pytest.fixture(scope="module")
def node(make_node: MakeNode) -> Node:
    """A freshly booted trixie node with docker, for one module."""
    return make_node("trixie")


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    """A node with the .deb installed and configured for the tiny model; nothing is started."""
    spark = SparkdNode(make_node("trixie", package))
    spark.configure()
    return spark
