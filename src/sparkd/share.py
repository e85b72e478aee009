"""Where the shipped data lies: below a checkout, or below /usr/share/sparkd once installed."""

from __future__ import annotations

from pathlib import Path

_TREE = Path(__file__).parents[2]
INSTALLED = Path("/usr/share/sparkd")


def _folder(in_tree: str, installed: str) -> Path:
    here = _TREE / in_tree
    return here if here.is_dir() else INSTALLED / installed


def recipes() -> Path:
    """Folder of the shipped recipes."""
    return _folder("config/recipes", "recipes")


def units() -> Path:
    """Folder of the unit templates."""
    return _folder("units", "units")
