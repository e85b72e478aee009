"""Fixtures of the commands that set up a node, of `sparkd model pull`, and of copies to another node."""

import shutil
from pathlib import Path

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


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that PATH has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder
