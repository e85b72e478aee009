"""The weights and the disks."""

from __future__ import annotations

from tests.machines.illness import Illness
from tests.tree import Tree


def healthy(tree: Tree, rank: int) -> None: ...


ILLNESSES: tuple[Illness, ...] = ()
