"""Fixtures of the commands that set up a node, and of `sparkd model pull`."""

import shutil

import pytest
from tests.machines.areas import healthy
from tests.tree import Tree
from tests.unit.hub_machine import broken_hub, hub, machine, server

__all__ = ["broken_hub", "hub", "machine", "server"]


@pytest.fixture
def spark(tree: Tree) -> Tree:
    """A Spark with DeepSeek-V4-Flash whole, its image, a cable, and no configuration."""
    healthy(tree, 0)
    shutil.rmtree(tree.root / "etc/sparkd")
    return tree
