"""Fixtures of the commands that set up a node."""

import shutil

import pytest
from tests.machines.areas import healthy
from tests.tree import Tree


@pytest.fixture
def spark(tree: Tree) -> Tree:
    """A Spark with DeepSeek-V4-Flash whole, its image, a cable, and no configuration."""
    healthy(tree, 0)
    shutil.rmtree(tree.root / "etc/sparkd")
    return tree
