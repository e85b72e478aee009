from __future__ import annotations

import pytest
from tests.tree import Tree

from sparkd.host import Host
from sparkd.preflight.check import Level
from sparkd.preflight.memory_limit import MemoryLimit
from sparkd.preflight.sizes import GIB, MIB


@pytest.mark.parametrize(
    ("gpu", "limit", "floor", "headroom", "level", "says"),
    [
        (True, None, 512 * MIB, 2 * GIB, Level.OK, "below 512 MiB available"),
        (True, None, 2 * GIB, 2 * GIB, Level.OK, "below 2048 MiB available"),
        (True, None, 0, 0, Level.OK, "guard is off"),
        (True, 100 * GIB, 512 * MIB, 2 * GIB, Level.WARN, "is 100.0 GiB, and does not bound what the GPU takes"),
        (True, None, 2 * GIB + 1, 2 * GIB, Level.WARN, "with 2.0 GiB to spare"),
        (False, 100 * GIB, 4 * GIB, 2 * GIB, Level.OK, "no GPU"),
    ],
)
def test_a_limit_that_does_not_hold_and_a_floor_above_the_headroom_warn(
    tree: Tree, gpu: bool, limit: int | None, floor: int, headroom: int, level: Level, says: str
) -> None:
    _, verdict = MemoryLimit(gpu, limit, floor, headroom).look(Host(tree.root))
    assert verdict.level is level
    assert says in verdict.reason
    assert bool(verdict.hint) is (level is not Level.OK)


def test_both_are_told_together(tree: Tree) -> None:
    _, verdict = MemoryLimit(True, 100 * GIB, 4 * GIB, 2 * GIB).look(Host(tree.root))
    assert "container.memory_limit_bytes" in verdict.reason
    assert "memory guard" in verdict.reason
