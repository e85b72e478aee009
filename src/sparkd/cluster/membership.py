"""This node's rank, role, plan and check inputs. The only place that compares roles."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparkd.lib.errors import AddressAwaitedError, ConfigError, HeadAwaitedError, UsageError
from sparkd.plan.model import LaunchPlan, Node

if TYPE_CHECKING:
    from sparkd.config import Settings
    from sparkd.host import Host
    from sparkd.preflight.inputs import CheckInputs
    from sparkd.recipes.loader import Loaded
    from sparkd.recipes.schema import Recipe
    from sparkd.state.shared_config import Kept
    from sparkd.state.switch import Chosen, Switch

HEAD, WORKER = "head", "worker"
THIS_NODE_ALONE = "127.0.0.1"


class Peer(NamedTuple):
    rank: int
    address: str


class NodeContext(Struct, frozen=True):
    plan: LaunchPlan
    settings: Settings
    """As configured, or with the engine of the chosen plan, or with what the head decides."""
    recipe: Recipe
    configured: Settings
    """On this node."""
    switch: Switch | None = None
    """What replaces the configured plan, or is to."""
    followed: Kept | None = None
    """The head's configuration, where this node follows it."""

    @property
    def rank(self) -> int:
        return self.plan.node.rank

    @property
    def role(self) -> str:
        return _role_of(self.plan.node)

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The other nodes, in rank order."""
        return peers_of(self.settings, self.rank)


def peers_of(settings: Settings, own_rank: int) -> tuple[Peer, ...]:
    nodes = enumerate(settings.cluster.nodes)
    return tuple(Peer(rank, address) for rank, address in nodes if rank != own_rank)


def check_inputs(node: NodeContext) -> CheckInputs:
    from sparkd.config import units
    from sparkd.preflight.inputs import CheckInputs

    drop_in = next(one for one in units.dropins(node.configured) if one.role == node.role)
    return CheckInputs(node.plan, node.settings, node.role, tuple(peer.address for peer in node.peers), drop_in)


def resolve_context(settings: Settings, role: str | None, host: Host) -> NodeContext:
    """This node as configured, or with the plan that was chosen in its place.

    Raises ConfigError (78), also where the node's role is not `role`, and as `find_place`.
    """
    from sparkd.state import known_good

    node = find_place(settings, host)
    own = _role_of(node)
    if role not in (None, own):
        raise ConfigError(f"this node is rank {node.rank}, the {own}, not a {role}", f"systemctl start sparkd-{own}")
    switch = None if follows_head(settings, node) else current_switch(settings, host)
    if switch is not None and switch.chosen is not None:
        return replace(chosen_context(switch.chosen, settings, host), switch=switch)
    try:
        return replace(configured_context(settings, host, node), switch=switch)
    except HeadAwaitedError:
        raise
    except ConfigError as error:
        hints = [error.hint] if error.hint else []
        with suppress(UsageError):  # users other than root may not read the file
            if known_good.read_known_good(host.files):
                hints.append("back to the last good plan: sparkd rollback")
        raise type(error)(error.reason, "; ".join(hints)) from None


def configured_context(settings: Settings, host: Host, place: Node | None = None) -> NodeContext:
    """This node as configured, without any choice. `place`: None where it is still to be found."""
    from sparkd.cluster.following import followed_context
    from sparkd.lib import recipes_dir
    from sparkd.plan.build import make_plan
    from sparkd.state import shared_config

    node = place or find_place(settings, host)
    if follows_head(settings, node):
        faults = list[str]()
        kept = shared_config.FILE.read(host.files, faults.append)
        if kept is None:
            hint = "systemctl start sparkd-worker here, which fetches it, and sparkd-head there"
            missing = f"no configuration of the head {node.head_address} is on this node yet"
            raise HeadAwaitedError("; ".join((missing, *faults)), hint)
        return followed_context(kept, settings, host, node)
    loaded = _load_recipe(settings, host)
    check_owners([("recipe", str(file)) for file in loaded.files if file.parent != recipes_dir()])
    plan = make_plan(loaded.recipe, settings, node)
    check_owners(plan.named_files)
    return NodeContext(plan, settings, loaded.recipe, settings)


def follows_head(settings: Settings, place: Node) -> bool:
    return settings.cluster.follow_head and place.rank > 0


def chosen_context(chosen: Chosen | None, settings: Settings, host: Host) -> NodeContext:
    """This node with this plan in place of the configured one; None: as configured."""
    from sparkd.plan.build import make_plan

    if chosen is None:
        return configured_context(settings, host)
    node, in_force = find_place(settings, host), chosen.apply_to(settings)
    try:
        plan = replace(make_plan(chosen.recipe, in_force, node), image_id=chosen.image_id)
    except ConfigError as error:
        raise type(error)(f"{error.reason}; chosen for this node is {chosen.label}", chosen.hint) from None
    check_owners(plan.named_files)
    return NodeContext(plan, in_force, chosen.recipe, settings)


def current_switch(settings: Settings, host: Host) -> Switch | None:
    """What replaces the configured plan, or is to; None also where the configuration has changed since."""
    from sparkd.state.switch import FILE

    found = FILE.read(host.files)
    return found if found is not None and found.replaces == fingerprint_config(settings, host) else None


def check_owners(files: Iterable[tuple[str, str]]) -> None:
    """`files`: role and path of each. Raises AwaitedError for one that others than root may change."""
    from sparkd.host.files import Files
    from sparkd.host.ownership import refuse_writable

    for role, path in files:
        refuse_writable(Files(), path, role)


def plan_by_tcp(node: NodeContext) -> LaunchPlan:
    """The same plan without RDMA: where one node has none, none may use it."""
    from sparkd.plan.build import make_plan

    plan = make_plan(node.recipe, node.settings, node.plan.node, by_tcp=True)
    return replace(plan, image_id=node.plan.image_id)


def fingerprint_config(settings: Settings, host: Host) -> str:
    """Of the configuration that a chosen plan replaces."""
    from sparkd.state.switch import fingerprint_engine

    recipe = None
    with suppress(ConfigError):
        recipe = _load_recipe(settings, host).recipe
    return fingerprint_engine(settings.engine, recipe)


def _load_recipe(settings: Settings, host: Host) -> Loaded:
    from sparkd.recipes.loader import load_recipe, recipe_folders

    return load_recipe(settings.engine.recipe, recipe_folders(Path(host.files.root)))


def _role_of(node: Node) -> str:
    return HEAD if node.rank == 0 else WORKER


def find_place(settings: Settings, host: Host) -> Node:
    """This node's place in the cluster: its rank is the index of its own address in cluster.nodes.

    A single node needs no address: it is the head. Raises AddressAwaitedError where none of several addresses is this
    node's (yet), ConfigError where more than one is, or where addresses are unreadable.
    """
    from sparkd.host import infiniband, network

    nodes = settings.cluster.nodes
    rank = _own_rank(nodes, host) if len(nodes) > 1 else 0
    node = node_of_rank(settings, rank)
    interface = node.interface or (network.interface_of(host.files, node.address) if nodes else "")
    hcas = node.hcas or infiniband.hcas_of(host.files, interface)
    return Node(node.rank, node.address, node.head_address, node.cluster_size, interface, hcas)


def node_of_rank(settings: Settings, rank: int) -> Node:
    """The node of a rank, from settings alone. Raises IndexError where there is no such rank."""
    nodes = settings.cluster.nodes or (THIS_NODE_ALONE,)
    return Node(rank, nodes[rank], nodes[0], len(nodes), settings.fabric.interface, settings.fabric.hcas)


def _own_rank(nodes: tuple[str, ...], host: Host) -> int:
    from sparkd.host.network import canonical

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
