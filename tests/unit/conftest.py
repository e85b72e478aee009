"""Fixtures of unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty machine."""
    made = Tree(tmp_path / "machine")
    made.folder("/proc")
    made.folder("/dev/shm")
    return made
