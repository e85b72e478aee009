"""The ports of this node's rank and agent, and their holders."""

from shlex import quote
from typing import NamedTuple

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, warn
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.engine_processes import find_engines, pids_of
from sparkd.agent.preflight.fixes import EndProcess, RemoveContainer, stop_by_hand
from sparkd.agent.preflight.port_uses import PortUse, find_port_uses, find_stop_command
from sparkd.base.config import Settings
from sparkd.base.host import Host, network
from sparkd.base.host.docker import DockerFacts
from sparkd.base.host.processes import ProcessTable
from sparkd.base.host.sockets import Listener
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.args import API_KEY
from sparkd.base.vllm.command import first_values

EVERY_IPV4, EVERY_IPV6 = "0.0.0.0", "::"  # noqa: S104  # compared, not bound


class WantedPort(Struct, frozen=True):
    """A port on which this node is to listen."""

    port: int
    address: str
    """An address of this node; empty: all of them, of IPv4 and IPv6."""
    what: str
    """Its use, in words."""
    setting: str
    """The setting that changes the port."""
    is_agent_port: bool = False
    """Whether the agent listens on it, and not the engine."""
    vital: bool = True
    """Whether a launch fails without it."""


class HeldPort(Struct, frozen=True, rename={"left_to_strays": "told_by_strays"}):  # words: keep - a key of the report
    """A wanted port that is in use."""

    wanted: WantedPort
    use: PortUse
    container: str
    """Name of docker's container that holds it, or the beginning of its id; empty for none."""
    left_to_strays: bool
    """Whether the check stray-workers judges the holder: an engine, or a process in a container of sparkd's."""
    descendants: tuple[EndProcess, ...] = ()
    """The holder's descendants, which are ended with it: they may share the socket."""


class Strays(NamedTuple):
    """Holders that the check stray-workers judges."""

    pids: frozenset[int] = frozenset()
    container_ids: frozenset[str] = frozenset()


def wanted_ports(plan: LaunchPlan, settings: Settings) -> tuple[WantedPort, ...]:
    """Ports on which this node is to listen. A worker serves no API; for the rendezvous it connects to the head."""
    node, is_cluster = plan.node, plan.node.cluster_size > 1
    ports = []
    if node.is_head:
        address = first_values(plan.argv).get("host") or EVERY_IPV4
        ports.append(WantedPort(plan.api_port, address, "the API", "args.port"))
    if node.is_head and is_cluster:
        ports.append(WantedPort(plan.master_port, "", "the rendezvous", "cluster.master_port"))
    if is_cluster:
        port, setting = settings.cluster.report_port, "cluster.report_port"
        ports.append(WantedPort(port, node.address, "the node's report", setting, is_agent_port=True))
    if settings.observe.address is not None:
        address, port = settings.observe.address
        ports.append(WantedPort(port, address, "the observers", "observe.listen", is_agent_port=True, vital=False))
    return tuple(ports)


class PortsFacts(Struct, frozen=True):
    held: tuple[HeldPort, ...]
    owner_pid: int | None
    missing: tuple[WantedPort, ...] = ()
    """The engine's ports on an address that this node does not have, or not yet, as one of DHCP at a boot."""


class Ports(Check[PortsFacts], frozen=True):
    wanted: tuple[WantedPort, ...]
    stray_check: StrayWorkers | None = StrayWorkers()
    """The check that judges engines and containers of sparkd's, and so the holders among them. None: it is skipped."""
    strays_only_warn: bool = False
    """Whether preflight.downgrade names that check: then only holders that it ends are left to it."""
    allowed_fixes: tuple[str, ...] = ()
    """Kinds of fixes that preflight may apply."""
    id = "ports"
    levels = (Level.WARN, Level.BLOCK)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> "Ports":
        policy = inputs.settings.preflight
        stray_check = None if StrayWorkers.id in policy.skip else StrayWorkers.from_inputs(inputs)
        strays_only_warn = StrayWorkers.id in policy.downgrade
        wanted = wanted_ports(inputs.plan, inputs.settings)
        return cls(wanted, stray_check, strays_only_warn, tuple(policy.allow_fixes))

    def probe(self, host: Host) -> PortsFacts:
        engine_ports = (wanted for wanted in self.wanted if not wanted.is_agent_port)
        missing = tuple(wanted for wanted in engine_ports if network.is_foreign(host.files, wanted.address))
        listeners = host.listeners(tuple({wanted.port for wanted in self.wanted}))
        pairs = ((listener, wanted) for wanted in self.wanted for listener in listeners)
        taken_by = {listener: wanted for listener, wanted in pairs if _conflicts(listener, wanted)}
        owner = host.owner()
        owner_pid = (owner.pid or None) if owner else None
        if not taken_by:
            return PortsFacts((), owner_pid, missing)
        table, docker = host.processes(), host.docker()
        strays = self._find_strays(host, table, docker)
        uses = zip(taken_by.values(), find_port_uses(host, table, tuple(taken_by)), strict=True)
        held = tuple(_describe_holder(wanted, use, table, docker, strays) for wanted, use in uses)
        return PortsFacts(held, owner_pid, missing)

    def _find_strays(self, host: Host, table: ProcessTable, docker: DockerFacts) -> Strays:
        if self.stray_check is None:
            return Strays()
        if not self.strays_only_warn:
            engines, _ = find_engines(host, table)
            return Strays(
                pids_of(engines), frozenset(container.id for container in docker.containers if container.ours)
            )
        _, verdict = self.stray_check.run(host)
        fixes = [fix for fix in verdict.fixes if verdict.clears and fix.kind in self.allowed_fixes]
        return Strays(
            frozenset(fix.pid for fix in fixes if isinstance(fix, EndProcess)),
            frozenset(fix.container_id for fix in fixes if isinstance(fix, RemoveContainer)),
        )

    def judge(self, facts: PortsFacts) -> Verdict:
        problems, own_ports, engine_ports = [*map(_judge_missing, facts.missing)], list[str](), list[str]()
        for held in facts.held:
            description = f"{held.wanted.what}, port {held.wanted.port}"
            # Only root learns who holds a socket. An unknown holder of an agent's port is taken for the node's owner.
            if held.wanted.is_agent_port and facts.owner_pid is not None and held.use.pid in (facts.owner_pid, None):
                own_ports.append(f"{description}: the agent's own, pid {facts.owner_pid}")
            elif held.left_to_strays:
                engine_ports.append(f"{description}: an engine's, see stray-workers")
            else:
                problems.append(_judge_held(held))
        taken_ports = {held.wanted.port for held in facts.held}
        free = ", ".join(str(wanted.port) for wanted in self.wanted if wanted.port not in taken_ports)
        parts = [f"{free} free" if free else "", *own_ports, *engine_ports]
        return combine_verdicts(problems, "; ".join(filter(None, parts)) or "this node listens on none")


def _describe_holder(
    wanted: WantedPort, use: PortUse, table: ProcessTable, docker: DockerFacts, strays: Strays
) -> HeldPort:
    container = docker.container(use.container_id)
    unlisted_name = "" if docker.known else use.container_id[:12]
    descendants = table.descendants(use.pid) if use.pid else ()
    return HeldPort(
        wanted,
        use,
        container=container.name if container else unlisted_name,
        left_to_strays=use.pid in strays.pids or use.container_id in strays.container_ids,
        descendants=tuple(
            EndProcess(child.pid, child.start_time, child.comm) for child in descendants if not child.dead
        ),
    )


def _conflicts(listener: Listener, wanted: WantedPort) -> bool:
    """Whether nothing can bind the wanted port beside this listener."""
    bound, wanted_address = _normalize(listener.address), _normalize(wanted.address)
    by_ipv6 = ":" in wanted_address or not wanted_address
    if listener.port != wanted.port or (listener.only_ipv6 and not by_ipv6):
        return False
    if "" in (bound, wanted_address) or EVERY_IPV6 in (bound, wanted_address) or bound == wanted_address:
        return True
    return EVERY_IPV4 in (bound, wanted_address) and (":" in bound) is (":" in wanted_address)


def _normalize(address: str) -> str:
    """The same text for the same address. Empty, as for all addresses, for a name, which may be any of them."""
    try:
        return network.canonical(address.strip("[]"))
    except ValueError:
        return ""


def _judge_missing(wanted: WantedPort) -> Verdict:
    reason = f"{wanted.what} is to listen on {wanted.address}, which this node does not have"
    hint = "it may come up yet: ip -brief address; where DHCP gave another one: args.host, or a fixed one in the router"
    return block(reason, hint, awaits=f"the address {wanted.address}")


def _judge_held(held: HeldPort) -> Verdict:
    wanted, use = held.wanted, held.use
    conflict = f"port {wanted.port} of {wanted.what} is held on {use.address} by"
    refuse = block if wanted.vital else warn
    alternative = f"or change {wanted.setting}"
    if use.pid is None:
        return refuse(f"{conflict} an unknown process", f"look at: sudo ss -ltnp sport = :{wanted.port}; {alternative}")
    inside = f" in container {held.container}" if held.container else ""
    reason = f"{conflict} pid {use.pid} ({use.comm or '?'}) of {use.user or '?'}{inside}"
    command = f"sudo docker stop {quote(held.container)}" if held.container else find_stop_command(use)
    offers = () if command else ((EndProcess(use.pid, use.start_time, use.comm), *held.descendants),)
    command = command or stop_by_hand(use.pid, use.service_stop, beside_agent=not wanted.vital)
    return refuse(reason, f"stop it if it may go: {command}; {alternative}", offers=offers)


class ListenersFacts(Struct, frozen=True):
    on_all_addresses: tuple[int, ...]
    """TCP ports of this machine that listen on all addresses, at most 32."""


class Listeners(Check[ListenersFacts], frozen=True):
    """Warns of an API on all addresses without a key, which serves anybody. Never blocks: the network may be closed."""

    plan: LaunchPlan
    id = "listeners"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> ListenersFacts:
        everywhere = (EVERY_IPV4, EVERY_IPV6)
        ports = {listener.port for listener in host.listeners() if listener.address in everywhere}
        return ListenersFacts(tuple(sorted(ports))[:32])

    def judge(self, facts: ListenersFacts) -> Verdict:  # noqa: ARG002  # evidence alone
        plan = self.plan
        if not plan.node.is_head:
            return ok("this rank serves no API")
        flags = first_values(plan.argv)
        address = flags.get("host") or ""
        variables = {name for name, _ in plan.env} | {secret.name for secret in plan.secrets}
        open_to_all = address in ("", "*") or _normalize(address) in (EVERY_IPV4, EVERY_IPV6)
        if open_to_all and API_KEY not in variables and not flags.get("api-key"):
            reason = f"the API will answer anybody who reaches port {plan.api_port} of this node: "
            hint = "a key, which clients have to send then: sudo sparkd init --api-key; or set args.host to one address"
            return warn(f"{reason}on all addresses, no key", hint)
        place = "all addresses, with a key" if open_to_all else address
        rank_note = f"; ranks meet on port {plan.master_port}" if plan.node.cluster_size > 1 else ""
        return ok(f"the API on {place}: port {plan.api_port}{rank_note}")
