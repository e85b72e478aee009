"""An illness: what is done to the files of a healthy machine, and which check must see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.tree import Tree

from sparkd.preflight.check import Level


@dataclass(frozen=True)
class Illness:
    name: str
    cause: Callable[[Tree], None]
    level: Level
    check: str
    says: str = ""
    """Words of the check's reason or hint."""
    rank: int = 0
    of_root: bool = False
    """Whose files are root's: only root can show it."""
    also: tuple[str, ...] = ()
    """Other checks that see it too, and may judge otherwise than on the healthy machine."""
