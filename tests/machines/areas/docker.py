"""Docker: the daemon, its containers and images, the compile caches, and units of others that launch engines."""

from __future__ import annotations

from tests.machines.illness import Illness
from tests.tree import Tree


def healthy(tree: Tree, rank: int) -> None: ...


ILLNESSES: tuple[Illness, ...] = ()
