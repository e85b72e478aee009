"""The ports that this node's rank and agent listen on: free, or whose."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight import engines, port_use
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.port_use import PortUse
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.sockets import Listener

EVERY_IPV4, EVERY_IPV6 = "0.0.0.0", "::"  # noqa: S104  # compared, not bound
PROXY = "docker-proxy"
"""Has the published ports of containers open, and is in none: without it the container goes on, and is cut off."""


class Wanted(Struct, frozen=True):
    """A port to listen on."""

    port: int
    address: str
    """An address of this node; empty: all of them, of IPv4 and IPv6."""
    what: str
    setting: str
    """Where it is configured."""
    agents: bool = False
    """Whether the agent listens on it, and not the engine."""
    vital: bool = True
    """Whether a launch fails without it."""


class Held(Struct, frozen=True):
    """A port that somebody listens on."""

    wanted: Wanted
    use: PortUse
    container: str
    """Name of the holder's container; empty outside."""
    told_by_strays: bool
    """Whether stray-workers names the holder: it is an engine, or in a container of sparkd's."""


class PortsFacts(Struct, frozen=True):
    held: tuple[Held, ...]
    owner_pid: int | None
    """Of the agent that owns this node."""


class Ports(Check[PortsFacts], frozen=True):
    """Every port that the plan needs is free, or its holder is named. Nobody is ended for a port."""

    wanted: tuple[Wanted, ...]
    id: ClassVar[str] = "ports"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="/proc/net/tcp, /proc/net/tcp6, sock_diag; where a port is held: every process's open files, docker's "
        "containers",
        source="measured on vLLM 0.32: where the port of the rendezvous is taken, the head ends after 25 s with "
        "EADDRINUSE; DeepSeek V4 Flash on Dual DGX Spark, section What Broke",
        page="""\
The container shares the node's network, so two programs that want one port are in each other's way. These are looked
at:

  the API            args.port of the recipe (8000), on the head
  the rendezvous     cluster.master_port (29501), on the head of several nodes: torch opens it on every address
  the node's report  cluster.report_port (29510), on every node of several: the other agents read it
  the observers      observe.listen (127.0.0.1:29511): metrics and health, on every node

A port that is held only on another address is free: 127.0.0.1:29510 does not keep 10.0.0.1:29510 from anybody. A
socket of [::] holds the port for IPv4 too, unless it is for IPv6 alone (IPV6_V6ONLY), as the kernel says.

  ok       all are free; or the agent that owns this node has its own open, as it must; or the holder is an engine,
           which stray-workers names and judges.
  warn     the observers' port is somebody else's: the engine runs without metrics. Give observe.listen another port.
  block    another is held. pid, name, user and container of the holder are named. Stop it if it may go, or choose
           another port: the setting is named too. All nodes of a cluster need the same one.

Holding a port makes nobody a stray: sparkd ends no process for it. A port that is bound but not listened on shows
nowhere in /proc, and neither does one that an outgoing connection has: those are found by the engine alone.""",
    )

    def probe(self, host: Host) -> PortsFacts:
        listeners = host.listeners()
        taken = {one: wanted for wanted in self.wanted for one in listeners if _in_the_way(one, wanted)}
        if any(one.address == EVERY_IPV6 for one in taken):
            only_ipv6 = host.only_ipv6()
            taken = {one: wanted for one, wanted in taken.items() if one.inode not in only_ipv6 or _by_ipv6(wanted)}
        owner = host.owner()
        owner_pid = owner.pid if owner else None
        if not taken:
            return PortsFacts((), owner_pid)
        table = host.processes()
        strays = {member.pid for engine in engines.find(host, table) for member in engine.members}
        containers = {one.id: one for one in host.docker().containers}
        held = []
        for one, use in zip(taken, port_use.holders(host, table, tuple(taken)), strict=True):
            container = containers.get(use.container_id)
            name = container.name if container else use.container_id[:12]
            told = use.pid in strays or (container is not None and container.ours)
            held.append(Held(taken[one], use, name, told))
        return PortsFacts(tuple(held), owner_pid)

    def judge(self, facts: PortsFacts) -> Verdict:
        mine = [one for one in facts.held if _is_owners(one, facts.owner_pid)]
        engines_own = [one for one in facts.held if one.told_by_strays and one not in mine]
        problems = [_problem(one) for one in facts.held if one not in mine and one not in engines_own]
        said = [f"{one.wanted.what}, port {one.wanted.port}: the agent's own, pid {facts.owner_pid}" for one in mine]
        said += [f"{one.wanted.what}, port {one.wanted.port}: an engine's, see stray-workers" for one in engines_own]
        held = {one.wanted.port for one in facts.held}
        free = [str(one.port) for one in self.wanted if one.port not in held]
        said = [f"{', '.join(free)} free", *said] if free else said
        return verdict(problems, "; ".join(said) or "this node listens on none")


def _is_owners(held: Held, owner_pid: int | None) -> bool:
    """Who is not root can't see who has a socket open, and sees who owns the node: its ports are open, then."""
    return held.wanted.agents and owner_pid is not None and held.use.pid in (owner_pid, None)


def _in_the_way(one: Listener, wanted: Wanted) -> bool:
    if one.port != wanted.port:
        return False
    here, there = _plain(one.address), _plain(wanted.address)
    if "" in (here, there) or EVERY_IPV6 in (here, there) or here == there:
        return True
    return EVERY_IPV4 in (here, there) and (":" in here) is (":" in there)


def _by_ipv6(wanted: Wanted) -> bool:
    """Whether it is to be listened on with IPv6 too."""
    return ":" in (address := _plain(wanted.address)) or not address


def _plain(address: str) -> str:
    """One text for one address. What is none, a name, may be any: all of them."""
    try:
        found = ip_address(address.strip("[]"))
    except ValueError:
        return ""
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _problem(held: Held) -> Problem:
    wanted, use = held.wanted, held.use
    where = f"port {wanted.port} of {wanted.what} is held on {use.address} by"
    level = Level.BLOCK if wanted.vital else Level.WARN
    choose = f"or change {wanted.setting}"
    if use.pid is None:
        return Problem(level, f"{where} an unknown process", f"look at: ss -ltnp sport = :{wanted.port}; {choose}")
    inside = f" in container {held.container}" if held.container else ""
    reason = f"{where} pid {use.pid} ({use.comm or '?'}) of {use.user or '?'}{inside}"
    return Problem(level, reason, f"stop it if it may go: {_stop(held)}; {choose}")


def _stop(held: Held) -> str:
    use = held.use
    if held.container:
        return f"docker stop {held.container}"
    if use.comm == PROXY:
        return f"docker stop what this names: docker ps --filter publish={use.port}"
    if use.pid == 1:
        return "systemctl stop the socket that this names: systemctl list-sockets"
    return f"kill {use.pid}"
