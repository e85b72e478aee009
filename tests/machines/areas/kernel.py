"""The kernel: its version, its log, and how the boot before this one ended."""

from __future__ import annotations

from tests.machines.illness import Illness
from tests.tree import Tree


def healthy(tree: Tree, rank: int) -> None: ...


ILLNESSES: tuple[Illness, ...] = ()
