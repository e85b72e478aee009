"""The files of a machine, one module for each area: the healthy state, and its faults."""

from tests.machines.areas import base, docker, fabric, gpu, guard, kernel, memory, model, plan
from tests.machines.fault import Fault
from tests.tree import Tree

AREAS = (base, memory, fabric, docker, model, gpu, guard, kernel, plan)


def healthy(tree: Tree, rank: int) -> Tree:
    """A node of a healthy pair of DGX Sparks that is about to launch: rank 0 is the head."""
    for area in AREAS:
        area.healthy(tree, rank)
    return tree


FAULTS: tuple[Fault, ...] = tuple(fault for area in AREAS for fault in area.FAULTS)
