"""What a machine is made of, one file for each concern: how it is when healthy, and what may be ill about it."""

from __future__ import annotations

from tests.machines.areas import base, docker, fabric, gpu, guard, kernel, memory, model, plan
from tests.machines.illness import Illness
from tests.tree import Tree

AREAS = (base, memory, fabric, docker, model, gpu, guard, kernel, plan)


def healthy(tree: Tree, rank: int) -> Tree:
    """A node of a healthy pair of DGX Sparks that is about to launch: rank 0 is the head."""
    for area in AREAS:
        area.healthy(tree, rank)
    return tree


ILLNESSES: tuple[Illness, ...] = tuple(illness for area in AREAS for illness in area.ILLNESSES)
