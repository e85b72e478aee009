"""The survey of a node by `sparkd init`, as lines: hardware, docker, fabric, neighbours, models, fits of recipes."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from itertools import zip_longest

from msgspec import Struct

from sparkd.agent.cluster.inventory import Inventory, read_inventory
from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.docker import Docker
from sparkd.base.config import Settings
from sparkd.base.host import CachedHost, Host, docker_config
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import GAP, sanitize, size
from sparkd.tools.node.fabric_ports import FabricPort, read_names, read_ports
from sparkd.tools.node.fit import Fit
from sparkd.tools.setup.neighbours import Neighbour, find_neighbours

MOST_SHOWN, MOST_REASONS = 4, 3
NETPLAN = "/etc/netplan/60-sparkd-fabric.yaml"


class Survey(Struct, frozen=True):
    """The state of a node before it is set up."""

    hardware: str
    docker: Verdict
    ports: tuple[FabricPort, ...]
    neighbours: tuple[Neighbour, ...]
    names: dict[str, tuple[str, ...]]
    """Names of machines by LLDP, by interface."""
    inventory: Inventory

    @property
    def fabric(self) -> FabricPort | None:
        """The best port with a cable; None without any."""
        return next((port for port in self.ports if port.connected), None)

    @property
    def address(self) -> str:
        """This node's address on the fabric; empty where it has none."""
        addresses = self.fabric.addresses if self.fabric else ()
        return min(addresses, key=lambda address: ip_address(address).is_link_local, default="")

    @property
    def alone(self) -> bool:
        """Whether no other machine answers on the fabric: one without any address, of IPv6 either, does not."""
        fabric_interfaces = {self.fabric.link.name, *self.fabric.twins} if self.fabric else ()
        return not any(neighbour.interface in fabric_interfaces for neighbour in self.neighbours)


def take_survey(settings: Settings, host: Host) -> Survey:
    """Examine the node, in about two seconds. Raises OSError, ValueError where tables of the kernel are unreadable."""
    host = CachedHost(host)
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    no_gpu = f"a GPU whose driver fails: {gpu.error}" if gpu.error else "no GPU"
    gpu_names = ", ".join(dict.fromkeys(gpu.names)) or no_gpu
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    ports = read_ports(host.files)
    connected = tuple(port.link.name for port in ports if port.connected)
    return Survey(
        hardware=f"{host.name()}: {size(host.meminfo().total_bytes)} of memory, {sanitize(gpu_names)}{driver}",
        docker=Docker(bool(gpu.names)).run(host)[1],
        ports=ports,
        neighbours=find_neighbours(host, connected, settings.cluster.report_port),
        names=read_names(host),
        inventory=read_inventory(settings, host),
    )


def format_rows(name: str, *texts: str) -> Iterator[str]:
    """Yield a line for each text; the name stands before the first one."""
    for label, text in zip_longest((name,), texts, fillvalue=""):
        yield f"{label:8}{GAP}{sanitize(text, 400)}"


def describe(survey: Survey) -> Iterator[tuple[str, ...]]:
    """Yield names, each with its texts, as `format_rows` takes them."""
    yield "node", survey.hardware
    docker = survey.docker
    if not docker.hint:
        yield "docker", docker.reason
    elif docker.level is Level.OK:  # the hint is on a restart of docker, which would end containers
        keep = f"to have it outlive that, without a restart now: {docker_config.KEEP_CONTAINERS}"
        yield "docker", docker.reason, keep
    else:
        yield "docker", f"{docker.reason} -> {docker.hint}"
    shown_links = set[str]()
    for port in survey.ports:
        if port.link.name not in shown_links:  # a twin is shown with its port
            yield "fabric", describe_port(port)
        shown_links |= {port.link.name, *port.twins}
    for name in dict.fromkeys(neighbour.interface for neighbour in survey.neighbours):
        here = [_describe_neighbour(neighbour) for neighbour in survey.neighbours if neighbour.interface == name]
        yield "answers", f"on {name}: {_join_first(here)}"
    for name, machines in survey.names.items():
        yield "LLDP", f"on {sanitize(name, 32)}: {_join_first(machines)}"
    inventory = survey.inventory
    models = [f"{model.path} ({model.fault or 'whole'}, {size(model.size_bytes)})" for model in inventory.models]
    for kind, names in (("models", models), ("images", [image.name for image in inventory.images])):
        unread_lines = [line.removeprefix(f"{kind}: ") for line in inventory.unread if line.startswith(f"{kind}: ")]
        yield kind, ", ".join(filter(None, (_join_first(names), *unread_lines))) or "none"


def describe_port(port: FabricPort) -> str:
    link, rdma = port.link, f" ({', '.join(port.hcas)})" if port.hcas else " (no RDMA)"
    if not port.connected:
        return f"{link.name}{rdma}: no cable, or the other end is off"
    speed = f"{link.speed_mbps / 1000:g} Gb/s, " if link.speed_mbps else ""
    note = ""
    if port.addresses and port.twins and len(port.hcas) < 2:  # a twin with an address has its device in `hcas`
        note = f"; its twin {port.twins[0]} has no address: half of the bandwidth"
    return f"{link.name}{rdma}: {speed}MTU {link.mtu}, {', '.join(port.addresses) or 'no address'}{note}"


def propose_addresses(port: FabricPort) -> str:
    """Commands for a person to type, which give a port and its twins addresses."""
    names = (port.link.name, *port.twins)
    # The last byte differs on each node.
    lines = (f"    {name}: {{addresses: [10.100.{net}.1/24], mtu: 9000}}" for net, name in enumerate(names))
    body = "\n".join(["network:", "  version: 2", "  ethernets:", *lines])
    return (
        f"sudo tee {NETPLAN} <<'END'   # .1 on this node, .2 on the next one, and so on\n{body}\nEND\n"
        f"sudo chmod 600 {NETPLAN} && sudo netplan apply"
    )


def _describe_neighbour(neighbour: Neighbour) -> str:
    details = (*neighbour.addresses, *(["sparkd runs there"] if neighbour.sparkd else []))
    return neighbour.link_local + (f" ({', '.join(details)})" if details else "")


def _join_first(parts: Sequence[str]) -> str:
    """The first MOST_SHOWN parts, and the number of the others."""
    more = f" and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    return ", ".join(parts[:MOST_SHOWN]) + more


def describe_fit(fit: Fit) -> str:
    """The recipe with what this node lacks for it."""
    where = f" on {fit.nodes} nodes" if fit.nodes > 1 else ""
    lacks = "; ".join(lack.reason for lack in fit.lacks)
    return f"{fit.recipe}{where}: {lacks or f'{fit.model} and its image are here'}"


def describe_others(fits: Sequence[Fit]) -> Iterator[str]:
    """Lines on recipes that were not chosen, grouped by the reason."""
    groups: dict[str, list[str]] = {}
    for fit in fits:
        groups.setdefault(fit.lacks[0].reason if fit.lacks else "would serve too", []).append(fit.recipe)
    for lack, names in list(groups.items())[:MOST_REASONS]:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield f"not {names[0]}{more}: {lack}"
    if len(groups) > MOST_REASONS:
        yield "and others: sparkd recipe list"
