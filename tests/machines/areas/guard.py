"""What is to keep the engine from taking all memory."""

from tests.machines.areas.base import configured
from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

LIMITED = """\
schema: 1
name: limited
description: With a limit that looks as if it helped
extends: deepseek-v4-flash-balanced
container:
  memory_limit_bytes: 120259084288
"""


def healthy(tree: Tree, rank: int) -> None: ...


def _limited_container(tree: Tree) -> None:
    tree.file("/etc/sparkd/recipes/limited.yaml", LIMITED)
    tree.file("/etc/sparkd/sparkd.toml", configured("limited"))


def _floor_above_headroom(tree: Tree) -> None:
    tree.file("/etc/sparkd/sparkd.toml", configured(more="[memory]\nfloor_mib = 4096"))


FAULTS = (
    Fault("memory-limit-of-the-container", _limited_container, Level.WARN, "memory-limit", says="memory_limit_bytes"),
    Fault("floor-above-headroom", _floor_above_headroom, Level.WARN, "memory-limit", says="memory.floor_mib"),
)
