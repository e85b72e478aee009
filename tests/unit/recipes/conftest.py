"""Fixtures of the tests of recipes."""

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree as eugr's tool has it: recipes, and mods beside their folder."""
    folder = tmp_path / "tree"
    (folder / "recipes").mkdir(parents=True)
    (folder / "run-recipe.py").touch()
    return folder
