"""Who this node is, and what that means: its rank, its plan, its checks. The only place that compares roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkd.errors import ConfigError
from sparkd.launch.plan import LaunchPlan, Node

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.preflight.check import Check
    from sparkd.settings import Settings

HEAD, WORKER = "head", "worker"
THIS_NODE_ALONE = "127.0.0.1"


@dataclass(frozen=True)
class NodeContext:
    """What settings and role make of this node."""

    role: str
    rank: int
    plan: LaunchPlan
