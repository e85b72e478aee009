"""What `sparkd init` finds on a node, as lines: hardware, docker, fabric, neighbours, models, and what recipes lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from msgspec import Struct

from sparkd.agent.cluster.inventory import Inventory, read_inventory
from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.docker import Docker
from sparkd.base.config import Settings
from sparkd.base.host import CachedHost, Host, docker_config
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import sanitize, size
from sparkd.tools.node.fabric_ports import FabricPort, read_names, read_ports
from sparkd.tools.node.fit import Fit
from sparkd.tools.setup.neighbours import Neighbour, find_neighbours

MOST_SHOWN, MOST_REASONS = 4, 3
NETPLAN = "/etc/netplan/60-sparkd-fabric.yaml"


class Survey(Struct, frozen=True):
    hardware: str
    docker: Verdict
    ports: tuple[FabricPort, ...]
    neighbours: tuple[Neighbour, ...]
    names: dict[str, tuple[str, ...]]
    """Names of machines by LLDP, by interface."""
    inventory: Inventory

    @property
    def fabric(self) -> FabricPort | None:
        """The best port that a cable is in."""
        return next((port for port in self.ports if port.connected), None)

    @property
    def address(self) -> str:
        """This node's address on the fabric; empty where it has none."""
        own = self.fabric.addresses if self.fabric else ()
        return min(own, key=lambda address: ip_address(address).is_link_local, default="")

    @property
    def alone(self) -> bool:
        own = {self.fabric.link.name, *self.fabric.twins} if self.fabric else ()
        return not any(neighbour.interface in own for neighbour in self.neighbours)


def take_survey(settings: Settings, host: Host) -> Survey:
    """Look at the node, in two seconds or so. Raises OSError, ValueError where tables of the kernel are unreadable."""
    host = CachedHost(host)
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    named = ", ".join(dict.fromkeys(gpu.names)) or (f"a GPU whose driver fails: {gpu.error}" if gpu.error else "no GPU")
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    ports = read_ports(host.files)
    connected = tuple(port.link.name for port in ports if port.connected)
    return Survey(
        hardware=f"{host.name()}: {size(host.meminfo().total_bytes)} of memory, {sanitize(named)}{driver}",
        docker=Docker(bool(gpu.names)).run(host)[1],
        ports=ports,
        neighbours=find_neighbours(host, connected, settings.cluster.report_port),
        names=read_names(host),
        inventory=read_inventory(settings, host),
    )


def describe(survey: Survey) -> Iterator[tuple[str, str]]:
    yield "node", survey.hardware
    optional = survey.docker.level is Level.OK
    yield "docker", survey.docker.reason + f" -> {survey.docker.hint}" * bool(survey.docker.hint and not optional)
    if survey.docker.hint and optional:
        yield "", f"to have it outlive that, without a restart now: {docker_config.KEEP_CONTAINERS}"
    shown = set[str]()
    for port in survey.ports:
        if port.link.name not in shown:  # as the twin of another
            yield "fabric", describe_port(port)
        shown |= {port.link.name, *port.twins}
    for name in dict.fromkeys(neighbour.interface for neighbour in survey.neighbours):
        met = [_describe_neighbour(neighbour) for neighbour in survey.neighbours if neighbour.interface == name]
        yield "answers", f"on {name}: {_short(met)}"
    for name, machines in survey.names.items():
        yield "LLDP", f"on {sanitize(name, 32)}: {_short(machines)}"
    here = survey.inventory
    models = [f"{model.path} ({model.fault or 'whole'}, {size(model.size_bytes)})" for model in here.models]
    for kind, names in (("models", models), ("images", [image.name for image in here.images])):
        unread = [line.removeprefix(f"{kind}: ") for line in here.unread if line.startswith(f"{kind}: ")]
        yield kind, ", ".join(filter(None, (_short(names), *unread))) or "none"


def describe_port(port: FabricPort) -> str:
    link, rdma = port.link, f" ({', '.join(port.hcas)})" if port.hcas else " (no RDMA)"
    if not port.connected:
        return f"{link.name}{rdma}: no cable, or the other end is off"
    speed = f"{link.speed_mbps / 1000:g} Gb/s, " if link.speed_mbps else ""
    bare = [twin for twin in port.twins if port.addresses and len(port.hcas) < 2]
    half = f"; its twin {bare[0]} has no address: half of the bandwidth" if bare else ""
    return f"{link.name}{rdma}: {speed}MTU {link.mtu}, {', '.join(port.addresses) or 'no address'}{half}"


def propose_addresses(port: FabricPort) -> str:
    """Commands that give a port and its twins addresses, to be typed by a person."""
    names = (port.link.name, *port.twins)
    # The last byte differs on each node.
    lines = (f"    {name}: {{addresses: [10.100.{net}.1/24], mtu: 9000}}" for net, name in enumerate(names))
    body = "\n".join(["network:", "  version: 2", "  ethernets:", *lines])
    return (
        f"sudo tee {NETPLAN} <<'END'   # .1 on this node, .2 on the next one, and so on\n{body}\nEND\n"
        f"sudo chmod 600 {NETPLAN} && sudo netplan apply"
    )


def _describe_neighbour(neighbour: Neighbour) -> str:
    known = (*neighbour.addresses, *(["sparkd runs there"] if neighbour.sparkd else []))
    return neighbour.link_local + (f" ({', '.join(known)})" if known else "")


def _short(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - MOST_SHOWN} more" if len(parts) > MOST_SHOWN else ""
    return ", ".join(parts[:MOST_SHOWN]) + more


def reason(fit: Fit) -> str:
    where = f" on {fit.nodes} nodes" if fit.nodes > 1 else ""
    lacks = "; ".join(lack.reason for lack in fit.lacks)
    return f"{fit.recipe}{where}: {lacks or f'{fit.model} and its image are here'}"


def group(fits: Sequence[Fit]) -> Iterator[str]:
    """Why these are not chosen."""
    groups: dict[str, list[str]] = {}
    for fit in fits:
        groups.setdefault(fit.lacks[0].reason if fit.lacks else "would serve too", []).append(fit.recipe)
    for lack, names in list(groups.items())[:MOST_REASONS]:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield f"not {names[0]}{more}: {lack}"
    if len(groups) > MOST_REASONS:
        yield "and others: sparkd recipe list"
