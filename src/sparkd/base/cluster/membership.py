"""This node's place in the cluster, the plan that it makes there, and the inputs of its checks.

A plan that was chosen replaces the configured one until the configuration changes.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.config import Settings, units
from sparkd.base.host import Host, infiniband, network
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import refuse_writable
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import (
    AddressAwaitedError,
    AwaitedError,
    ChoiceError,
    ConfigError,
    HeadAwaitedError,
    UsageError,
)
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.loader import LoadedRecipe, load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.file import FolderError
from sparkd.base.state.known_good import read_known_good
from sparkd.base.state.shared_config import Kept
from sparkd.base.state.switch import FILE, Chosen, Switch, fingerprint_engine


class Peer(NamedTuple):
    rank: int
    address: str


class NodeContext(Struct, frozen=True):
    plan: LaunchPlan
    settings: Settings
    """The settings in force: the configured ones, with the engine of the chosen plan or the head's values, if any."""
    recipe: Recipe
    configured: Settings
    """The settings as configured on this node."""
    switch: Switch | None = None
    """What replaces the configured plan, or is to."""
    followed: Kept | None = None
    """The head's configuration, where this node follows it."""

    @property
    def rank(self) -> int:
        return self.plan.node.rank

    @property
    def role(self) -> str:
        return self.plan.node.role

    @property
    def is_head(self) -> bool:
        return self.plan.node.is_head

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The other nodes, in rank order."""
        return peers_of(self.settings, self.rank)


def peers_of(settings: Settings, own_rank: int) -> tuple[Peer, ...]:
    nodes = enumerate(settings.cluster.nodes)
    return tuple(Peer(rank, address) for rank, address in nodes if rank != own_rank)


def check_inputs(node: NodeContext) -> CheckInputs:
    drop_in = next(drop_in for drop_in in units.dropins(node.configured) if drop_in.unit == units.unit_name(node.role))
    return CheckInputs(node.plan, node.settings, node.role, tuple(peer.address for peer in node.peers), drop_in)


def resolve_context(settings: Settings, role: str | None, host: Host) -> NodeContext:
    """This node as configured, or with the plan that was chosen in its place.

    Raises ConfigError (78), also where the node's role is not `role`, and as `find_place`; ChoiceError where the plan
    that was chosen can't be made.
    """
    node = find_place(settings, host)
    if role not in (None, node.role):
        reason = f"this node is rank {node.rank}, the {node.role}, not a {role}"
        disable, enable = f"disable --now sparkd-{role}", f"enable --now sparkd-{node.role}"
        raise ConfigError(reason, f"sudo systemctl {disable}; sudo systemctl {enable}")
    switch = None if follows_head(settings, node) else current_switch(settings, host)
    chosen = switch.chosen if switch is not None else None
    try:
        return replace(make_context(settings, host, chosen, node), switch=switch)
    except HeadAwaitedError:
        raise
    except ConfigError as error:
        hints = [error.hint] if error.hint else []
        with suppress(UsageError, OSError):  # users other than root may not read the file
            if chosen is None and not follows_head(settings, node) and read_known_good(host.files):
                hints.append("back to the last good plan: sudo sparkd rollback")
        kind = ChoiceError if chosen is not None and not isinstance(error, AwaitedError) else type(error)
        raise kind(error.reason, "; ".join(hints)) from None


def make_context(
    settings: Settings, host: Host, chosen: Chosen | None = None, place: Node | None = None
) -> NodeContext:
    """This node as configured, or with the chosen plan instead. `place`: None where it is not determined yet."""
    from sparkd.base.cluster.following import followed_context, read_kept  # it imports this module

    node = place or find_place(settings, host)
    if chosen is None and follows_head(settings, node):
        return followed_context(read_kept(host, node), settings, host, node)
    if chosen is None:
        recipe, in_force = load_own_recipe(settings.engine.recipe, host).recipe, settings
    else:
        recipe, in_force = chosen.recipe, chosen.apply_to(settings)
    try:
        plan = make_plan(recipe, in_force, node)
    except ConfigError as error:
        if chosen is None:
            raise
        raise type(error)(f"{error.reason}; chosen for this node is {chosen.label}", chosen.hint) from None
    check_owners(plan.named_files)
    return NodeContext(replace(plan, image_id=chosen.image_id if chosen else ""), in_force, recipe, settings)


def follows_head(settings: Settings, place: Node) -> bool:
    return settings.cluster.follow_head and not place.is_head


def check_owners(files: Iterable[tuple[str, str]]) -> None:
    """`files`: role and path of each. Raises AwaitedError for one that others than root may change."""
    for role, path in files:
        refuse_writable(Files(), path, role)


def plan_to_launch(node: NodeContext, compile_jobs: int, *, by_tcp: bool = False) -> LaunchPlan:
    """The plan with what is known at the launch only: how many compilers the memory holds (`compile_jobs`).

    `by_tcp`: without RDMA, which no node may use where one has none.
    """
    place = replace(node.plan.node, compile_jobs=str(compile_jobs))
    plan = make_plan(node.recipe, node.settings, place, by_tcp=by_tcp)
    return replace(plan, image_id=node.plan.image_id, caches=node.plan.caches)


def load_own_recipe(name: str, host: Host) -> LoadedRecipe:
    """This node's recipe of a name. Raises ConfigError, AwaitedError where others than root may change its files."""
    loaded = load_recipe(name, recipe_folders(Path(host.files.root)))
    check_owners([("recipe", str(file)) for file in loaded.files if file.parent != recipes_dir()])
    return loaded


def find_place(settings: Settings, host: Host) -> Node:
    """This node's place in the cluster: its rank is the index of its own address in cluster.nodes.

    A single node needs no address: it is the head. Raises AddressAwaitedError where none of several addresses is this
    node's (yet), AwaitedError where addresses are unreadable, ConfigError where more than one is.
    """
    nodes = settings.cluster.nodes
    rank = _find_own_rank(nodes, host) if len(nodes) > 1 else 0
    node = node_of_rank(settings, rank)
    interface = node.interface or (network.interface_of(host.files, node.address) if nodes else "")
    hcas = node.hcas or infiniband.hcas_of(host.files, interface)
    return Node(node.rank, node.address, node.head_address, node.cluster_size, interface, hcas)


def node_of_rank(settings: Settings, rank: int) -> Node:
    """The node of a rank, from settings alone. Raises IndexError where there is no such rank."""
    nodes = settings.cluster.nodes or ("127.0.0.1",)  # this node alone
    return Node(rank, nodes[rank], nodes[0], len(nodes), settings.fabric.interface, settings.fabric.hcas)


def _find_own_rank(nodes: tuple[str, ...], host: Host) -> int:
    try:
        addresses = host.addresses()
    except (OSError, ValueError) as error:
        raise AwaitedError(f"this node's addresses can't be read: {error}", "look at: ip -brief address") from None
    ranks = [rank for rank, address in enumerate(nodes) if network.canonical(address) in addresses]
    if len(ranks) > 1:
        repeated = " and ".join(nodes[rank] for rank in ranks)
        raise ConfigError(
            f"cluster.nodes names this node more than once: {repeated} are its own",
            "name one address of each node, the one on the fabric",
        )
    if not ranks:
        own_addresses = ", ".join(address for address in addresses if not ip_address(address).is_loopback) or "none"
        raise AddressAwaitedError(
            f"this node has none of the addresses of cluster.nodes ({', '.join(nodes)}); its own: {own_addresses}",
            "is its cable in, other node on? else: sudo netplan apply; if DHCP changed it: cluster.nodes, on all nodes",
        )
    return ranks[0]


def current_switch(settings: Settings, host: Host) -> Switch | None:
    """The switch that replaces the configured plan, or will at the next start; None where there is none.

    None also where the configuration has changed since. Raises as `load_switch`.
    """
    switch = load_switch(host, lambda _: None)
    with suppress(AwaitedError):  # a configuration that can't be read now is not known to have changed
        return switch if switch is not None and switch.replaces == fingerprint_config(settings, host) else None
    return switch


def load_switch(host: Host, report: Callable[[str], None]) -> Switch | None:
    """The switch in the file. `report` gets a line where the file is not one that sparkd wrote.

    Raises AwaitedError where the file can't be read, UsageError for a user who may not read it.
    """
    try:
        return FILE.load(host.files, report)
    except OSError as error:
        hint = "look at: sudo dmesg; a file that stays unreadable: move it away, and what is configured holds"
        raise AwaitedError(str(error), error.hint if isinstance(error, FolderError) else hint) from None


def fingerprint_config(settings: Settings, host: Host) -> str:
    """Fingerprint of the configuration that a chosen plan replaces. Raises AwaitedError where it can't be read now."""
    try:
        recipe = load_recipe(settings.engine.recipe, recipe_folders(Path(host.files.root))).recipe
    except AwaitedError:
        raise
    except ConfigError:
        recipe = None
    return fingerprint_engine(settings.engine, recipe)
