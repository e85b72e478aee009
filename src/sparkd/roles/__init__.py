"""Who this node is, and what that means: its rank, its plan, its checks. The only place that compares roles."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparkd.errors import AddressAwaitedError, ConfigError
from sparkd.launch.plan import LaunchPlan, Node

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.known_good.rollback import Rollback
    from sparkd.preflight.check import AnyCheck
    from sparkd.preflight.memory import MemorySample
    from sparkd.recipes.schema import Recipe
    from sparkd.settings import Settings

HEAD, WORKER = "head", "worker"
THIS_NODE_ALONE = "127.0.0.1"


class Peer(NamedTuple):
    """Another node of the cluster."""

    rank: int
    address: str


class NodeContext(Struct, frozen=True):
    """What settings make of this node."""

    role: str
    rank: int
    plan: LaunchPlan
    settings: Settings
    """In force: as configured, or with the engine of a rollback."""
    recipe: Recipe
    configured: Settings
    rollback: Rollback | None = None
    """The one that is in force."""

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
    """This node's place, plan and checks: as configured, or as a rollback has it that is in force.

    Raises ConfigError (78) where `role` is another node's, and as `place`.
    """
    from sparkd.known_good import rollback

    node = _place_in(role, settings, host)
    back = rollback.read(host.files)
    if back is not None and back.replaces == fingerprint(settings, host):
        return _rolled_back(back, settings, node)
    try:
        return _configured(settings, node, host)
    except ConfigError as error:
        raise _with_a_way_back(error, host) from None


def configured(settings: Settings, role: str | None, host: Host) -> NodeContext:
    """The same as the configuration alone says it."""
    return _configured(settings, _place_in(role, settings, host), host)


def rolled_back(back: Rollback, settings: Settings, role: str | None, host: Host) -> NodeContext:
    """The same with the engine of a rollback."""
    return _rolled_back(back, settings, _place_in(role, settings, host))


def _configured(settings: Settings, node: Node, host: Host) -> NodeContext:
    from sparkd.launch.planner import make_plan

    recipe = _recipe(settings, host)
    return NodeContext(_role(node), node.rank, make_plan(recipe, settings, node), settings, recipe, settings)


def _with_a_way_back(error: ConfigError, host: Host) -> ConfigError:
    from sparkd.known_good import history

    way = "back to the last good plan: sparkd rollback" if history.read(host.files) else ""
    return ConfigError(error.reason, "; ".join(part for part in (error.hint, way) if part))


def _rolled_back(back: Rollback, settings: Settings, node: Node) -> NodeContext:
    from sparkd.known_good.rollback import HINT
    from sparkd.launch.planner import make_plan

    in_force = back.over(settings)
    try:
        plan = replace(make_plan(back.recipe, in_force, node), image_id=back.image_id)
    except ConfigError as error:
        raise ConfigError(f"{error.reason}: so says {back.words}, to which this node is rolled back", HINT) from None
    return NodeContext(_role(node), node.rank, plan, in_force, back.recipe, settings, back)


def fingerprint(settings: Settings, host: Host) -> str:
    """Of what is configured, and a rollback replaces."""
    from sparkd.known_good import rollback

    try:
        recipe = _recipe(settings, host)
    except ConfigError:
        return rollback.fingerprint(settings.engine, None)
    return rollback.fingerprint(settings.engine, recipe)


def _recipe(settings: Settings, host: Host) -> Recipe:
    from sparkd.recipes.load import load
    from sparkd.recipes.lookup import folders

    return load(settings.engine.recipe, folders(Path(host.files.root))).recipe


def _role(node: Node) -> str:
    return HEAD if node.rank == 0 else WORKER


def _place_in(role: str | None, settings: Settings, host: Host) -> Node:
    """This node's place, where that is of this role."""
    node = place(settings, host)
    own_role = _role(node)
    if role is not None and role != own_role:
        raise ConfigError(
            f"this node is rank {node.rank}, the {own_role}, not a {role}", f"systemctl start sparkd-{own_role}"
        )
    return node


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
