"""A fault: a change of a healthy machine's files, and the check that must find it."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.tree import Tree

from sparkd.agent.preflight.check import Level


@dataclass(frozen=True)
class Fault:
    name: str
    cause: Callable[[Tree], None]
    level: Level
    check: str
    says: str = ""
    """Part of the check's reason or hint."""
    rank: int = 0
    of_root: bool = False
    """Its files are root's: only root can cause it."""
    also: tuple[str, ...] = ()
    """Other checks that may judge otherwise than on the healthy machine."""
