"""Who this node is, and what that means: its rank, its plan, its checks. The only place that compares roles."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparkd.errors import AddressAwaitedError, ConfigError
from sparkd.launch.plan import LaunchPlan, Node

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.preflight.check import AnyCheck
    from sparkd.preflight.memory import MemorySample
    from sparkd.settings import Settings

HEAD, WORKER = "head", "worker"
THIS_NODE_ALONE = "127.0.0.1"


class Peer(NamedTuple):
    """Another node of the cluster."""

    rank: int
    address: str


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

    @property
    def is_head(self) -> bool:
        return self.role == HEAD

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The other nodes, in rank order."""
        nodes = enumerate(self.settings.cluster.nodes)
        return tuple(Peer(rank, address) for rank, address in nodes if rank != self.rank)

    def checks(self, earlier: MemorySample | None = None) -> tuple[AnyCheck, ...]:
        """The checks of this node's role; `earlier` is the first look at the memory, where there was one."""
        from sparkd.roles.checks import build

        return build(self, earlier)


def context(settings: Settings, role: str | None, host: Host) -> NodeContext:
    """This node's place, plan and checks. Raises ConfigError (78) where `role` is another node's, and as `place`."""
    from sparkd.launch.planner import make_plan
    from sparkd.recipes.load import load
    from sparkd.recipes.lookup import folders

    node = place(settings, host)
    own_role = HEAD if node.rank == 0 else WORKER
    if role is not None and role != own_role:
        raise ConfigError(
            f"this node is rank {node.rank}, the {own_role}, not a {role}", f"systemctl start sparkd-{own_role}"
        )
    recipe = load(settings.engine.recipe, folders(Path(host.files.root))).recipe
    return NodeContext(own_role, node.rank, make_plan(recipe, settings, node), settings)


def place(settings: Settings, host: Host) -> Node:
    """This node's place in the cluster: its rank is that of the address of cluster.nodes that it owns.

    One node needs no address: it is the head, without workers. Raises AddressAwaitedError where none of several
    addresses is this node's (yet), ConfigError where more than one is, or where that can't be told.
    """
    from sparkd.host import fabric

    nodes = settings.cluster.nodes
    rank = _own_rank(nodes, host) if len(nodes) > 1 else 0
    node = of_rank(settings, rank)
    interface = node.interface or (fabric.interface_of(host.files, node.address) if nodes else "")
    hcas = node.hcas or fabric.hcas_of(host.files, interface)
    return Node(node.rank, node.address, node.head_address, node.cluster_size, interface, hcas)


def of_rank(settings: Settings, rank: int) -> Node:
    """The node of a rank, as far as settings alone tell. Raises IndexError where there is no such rank."""
    nodes = settings.cluster.nodes or (THIS_NODE_ALONE,)
    return Node(rank, nodes[rank], nodes[0], len(nodes), settings.fabric.interface, settings.fabric.hcas)


def _own_rank(nodes: tuple[str, ...], host: Host) -> int:
    from sparkd.host.addresses import canonical

    try:
        found = host.addresses()
    except (OSError, ValueError) as error:
        raise ConfigError(f"this node's addresses can't be read: {error}", "look at: ip -brief address") from None
    ranks = [rank for rank, address in enumerate(nodes) if canonical(address) in found]
    if len(ranks) > 1:
        owned = " and ".join(nodes[rank] for rank in ranks)
        raise ConfigError(
            f"cluster.nodes names this node more than once: {owned} are its own",
            "name one address of each node, the one on the fabric",
        )
    if not ranks:
        own = ", ".join(address for address in found if not ip_address(address).is_loopback) or "none"
        raise AddressAwaitedError(
            f"this node has none of the addresses of cluster.nodes ({', '.join(nodes)}); its own: {own}",
            "ip -brief address",
        )
    return ranks[0]
