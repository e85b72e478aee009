"""Who this node is, and what that means: its rank, its plan, its checks. The only place that compares roles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.errors import ConfigError
from sparkd.launch.plan import LaunchPlan, Node

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.preflight.check import AnyCheck
    from sparkd.preflight.memory import MemorySample
    from sparkd.settings import Settings

HEAD, WORKER = "head", "worker"
THIS_NODE_ALONE = "127.0.0.1"


@dataclass(frozen=True)
class NodeContext:
    """What settings make of this node."""

    role: str
    rank: int
    plan: LaunchPlan
    settings: Settings

    @property
    def unit(self) -> str:
        return f"sparkd-{self.role}.service"

    def checks(self, earlier: MemorySample | None = None) -> tuple[AnyCheck, ...]:
        """The checks of this node's role; `earlier` is the first look at the memory, where there was one."""
        from sparkd.roles.checks import build

        return build(self, earlier)


def context(settings: Settings, role: str | None, host: Host) -> NodeContext:
    """This node's place, plan and checks. Raises ConfigError (78) where `role` is another node's."""
    from sparkd.launch.planner import make_plan
    from sparkd.recipes.load import load
    from sparkd.recipes.lookup import folders

    node = place(settings)
    own_role = HEAD if node.rank == 0 else WORKER
    if role is not None and role != own_role:
        raise ConfigError(
            f"this node is rank {node.rank}, the {own_role}, not a {role}", f"systemctl start sparkd-{own_role}"
        )
    recipe = load(settings.engine.recipe, folders(Path(host.files.root))).recipe
    return NodeContext(own_role, node.rank, make_plan(recipe, settings, node), settings)


def place(settings: Settings) -> Node:
    """This node's place in the cluster. One node needs no address: it is the head, without workers."""
    nodes = settings.cluster.nodes
    if len(nodes) > 1:
        raise ConfigError(
            f"cluster.nodes names {len(nodes)} nodes, and this version of sparkd serves on one",
            "name one node, and a recipe that fits it",
        )
    address = str(nodes[0]) if nodes else THIS_NODE_ALONE
    return Node(
        rank=0,
        address=address,
        head_address=address,
        cluster_size=1,
        interface=settings.fabric.interface,
        hcas=settings.fabric.hcas,
    )
