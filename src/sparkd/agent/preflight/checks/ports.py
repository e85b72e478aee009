"""The ports of this node's rank and agent, and their holders."""

from __future__ import annotations

from shlex import quote

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, verdict, warn
from sparkd.agent.preflight.engine_processes import PortUse, find_engines, pids_of, port_holders
from sparkd.agent.preflight.fixes import EndProcess, stop_by_hand
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.network import canonical
from sparkd.base.host.sockets import Listener
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.args import API_KEY
from sparkd.base.vllm.flag import first_values

EVERY_IPV4, EVERY_IPV6 = "0.0.0.0", "::"  # noqa: S104  # compared, not bound
PROXY = "docker-proxy"
"""docker's process that holds a container's published ports from outside; without it the container runs on."""


class Wanted(Struct, frozen=True):
    port: int
    address: str
    """An address of this node; empty: all of them, of IPv4 and IPv6."""
    what: str
    setting: str
    agents: bool = False
    """Whether the agent listens on it, and not the engine."""
    vital: bool = True
    """Whether a launch fails without it."""


class Held(Struct, frozen=True):
    wanted: Wanted
    use: PortUse
    container: str
    told_by_strays: bool  # words: keep - a key of the report
    """Whether stray-workers names the holder: it is an engine, or in a container of sparkd's."""
    descendants: tuple[EndProcess, ...] = ()
    """The holder's, ended with it: they may share the socket."""


def wanted_ports(plan: LaunchPlan, settings: Settings) -> tuple[Wanted, ...]:
    """Ports on which this node listens. A worker serves no API, and connects to the head's port of the rendezvous."""
    several, is_head = plan.node.cluster_size > 1, plan.node.rank == 0
    ports = []
    if is_head:
        ports.append(Wanted(plan.api_port, first_values(plan.argv).get("host") or EVERY_IPV4, "the API", "args.port"))
    if is_head and several:
        ports.append(Wanted(plan.master_port, "", "the rendezvous", "cluster.master_port"))
    if several:
        port = settings.cluster.report_port
        ports.append(Wanted(port, plan.node.address, "the node's report", "cluster.report_port", agents=True))
    if settings.observe.address is not None:
        address, port = settings.observe.address
        ports.append(Wanted(port, address, "the observers", "observe.listen", agents=True, vital=False))
    return tuple(ports)


class PortsFacts(Struct, frozen=True):
    held: tuple[Held, ...]
    owner_pid: int | None


class Ports(Check[PortsFacts], frozen=True):
    wanted: tuple[Wanted, ...]
    id = "ports"
    levels = (Level.WARN, Level.BLOCK)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> Ports:
        return cls(wanted_ports(inputs.plan, inputs.settings))

    def probe(self, host: Host) -> PortsFacts:
        listeners = host.listeners(tuple({wanted.port for wanted in self.wanted}))
        taken = {other: wanted for wanted in self.wanted for other in listeners if _in_the_way(other, wanted)}
        owner = host.owner()
        owner_pid = (owner.pid or None) if owner else None
        if not taken:
            return PortsFacts((), owner_pid)
        table = host.processes()
        strays = pids_of(find_engines(host, table)[0])
        containers = {container.id: container for container in host.docker().containers}
        held = []
        for wanted, use in zip(taken.values(), port_holders(host, table, tuple(taken)), strict=True):
            container = containers.get(use.container_id)
            name = container.name if container else use.container_id[:12]
            named = use.pid in strays or (container is not None and container.ours)
            below = table.descendants(use.pid) if use.pid else ()
            ends = tuple(EndProcess(child.pid, child.start_time, child.comm) for child in below if not child.dead)
            held.append(Held(wanted, use, name, named, ends))
        return PortsFacts(tuple(held), owner_pid)

    def judge(self, facts: PortsFacts) -> Verdict:
        problems, own, engines = [], list[str](), list[str]()
        for held in facts.held:
            port = f"{held.wanted.what}, port {held.wanted.port}"
            # Without root the holder of a socket is unknown, but the node's owner is known: its ports are its own.
            if held.wanted.agents and facts.owner_pid is not None and held.use.pid in (facts.owner_pid, None):
                own.append(f"{port}: the agent's own, pid {facts.owner_pid}")
            elif held.told_by_strays:  # words: keep
                engines.append(f"{port}: an engine's, see stray-workers")
            else:
                problems.append(_problem(held))
        taken = {held.wanted.port for held in facts.held}
        free = ", ".join(str(wanted.port) for wanted in self.wanted if wanted.port not in taken)
        parts = [f"{free} free" if free else "", *own, *engines]
        return verdict(problems, "; ".join(filter(None, parts)) or "this node listens on none")


def _in_the_way(listener: Listener, wanted: Wanted) -> bool:
    here, there = _plain(listener.address), _plain(wanted.address)
    by_ipv6 = ":" in there or not there
    if listener.port != wanted.port or (listener.only_ipv6 and not by_ipv6):
        return False
    if "" in (here, there) or EVERY_IPV6 in (here, there) or here == there:
        return True
    return EVERY_IPV4 in (here, there) and (":" in here) is (":" in there)


def _plain(address: str) -> str:
    """One text for one address. A name may be any address: empty, as for all of them."""
    try:
        return canonical(address.strip("[]"))
    except ValueError:
        return ""


def _problem(held: Held) -> Verdict:
    wanted, use = held.wanted, held.use
    where = f"port {wanted.port} of {wanted.what} is held on {use.address} by"
    refuse = block if wanted.vital else warn
    choose = f"or change {wanted.setting}"
    if use.pid is None:
        return refuse(f"{where} an unknown process", f"look at: sudo ss -ltnp sport = :{wanted.port}; {choose}")
    inside = f" in container {held.container}" if held.container else ""
    reason = f"{where} pid {use.pid} ({use.comm or '?'}) of {use.user or '?'}{inside}"
    stop = _stop(held)
    offers = () if stop else ((EndProcess(use.pid, use.start_time, use.comm), *held.descendants),)
    stop = stop or stop_by_hand(use.pid, use.service_stop)
    return refuse(reason, f"stop it if it may go: {stop}; {choose}", offers=offers)


def _stop(held: Held) -> str:
    """The command that stops what is no process of its own; empty where it is one."""
    use = held.use
    if held.container:
        return f"sudo docker stop {quote(held.container)}"
    if use.comm == PROXY:
        return f"sudo docker stop what this names: sudo docker ps --filter publish={use.port}"
    if use.pid == 1:
        return "sudo systemctl stop the socket that this names: systemctl list-sockets"
    return ""


SHOWN = 32


class ListenersFacts(Struct, frozen=True):
    on_all_addresses: tuple[int, ...]
    """TCP ports of this machine that listen on all addresses; the first of them."""


class Listeners(Check[ListenersFacts], frozen=True):
    """An API on all addresses without a key serves anybody. It never blocks: the network may be closed."""

    plan: LaunchPlan
    id = "listeners"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> ListenersFacts:
        everywhere = (EVERY_IPV4, EVERY_IPV6)
        ports = {listener.port for listener in host.listeners() if listener.address in everywhere}
        return ListenersFacts(tuple(sorted(ports))[:SHOWN])

    def judge(self, facts: ListenersFacts) -> Verdict:  # noqa: ARG002  # evidence alone
        plan = self.plan
        if plan.node.rank > 0:
            return ok("this rank serves no API")
        flags = first_values(plan.argv)
        address = flags.get("host") or ""
        named = {name for name, _ in plan.env} | {secret.name for secret in plan.secrets}
        open_to_all = address in ("", "*") or _plain(address) in (EVERY_IPV4, EVERY_IPV6)
        if open_to_all and API_KEY not in named and not flags.get("api-key"):
            reason = f"the API will answer anybody who reaches port {plan.api_port} of this node: "
            hint = "a key, which clients have to send then: sudo sparkd init --api-key; or set args.host to one address"
            return warn(f"{reason}on all addresses, no key", hint)
        where = "all addresses, with a key" if open_to_all else address
        ranks = f"; ranks meet on port {plan.master_port}" if plan.node.cluster_size > 1 else ""
        return ok(f"the API on {where}: port {plan.api_port}{ranks}")
