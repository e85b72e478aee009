"""What the engine opens to everybody who reaches this node."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight.check import About, Check, Level, Verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.launch.plan import LaunchPlan

API_KEY = "VLLM_API_KEY"
ALL_ADDRESSES = ("", "0.0.0.0", "::", "*")  # noqa: S104  # compared, not bound
SHOWN = 32


class ListenersFacts(Struct, frozen=True):
    on_all_addresses: tuple[int, ...]
    """TCP ports of this machine that listen on all addresses now, whoever holds them; the first of them."""


class Listeners(Check[ListenersFacts], frozen=True):
    """An API on all addresses without a key serves whoever finds it. It never blocks: the network may be closed."""

    host: str
    """That the API listens on; empty: all addresses."""
    api_port: int
    master_port: int
    has_key: bool
    serves: bool
    """Whether this rank serves the API: the head alone does."""
    nodes: int
    id: ClassVar[str] = "listeners"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="the plan; /proc/net/tcp, /proc/net/tcp6",
        source="measured on vLLM 0.32: its ports, and what answers without the key",
        page="""\
The container shares the node's network, so what the engine listens on, the node listens on. The head opens the
API (args.host and args.port) and, with several nodes, the port where ranks meet (cluster.master_port), which torch
opens on every address, without any password, whatever is configured.

  warn     the API listens on all addresses (args.host is 0.0.0.0, :: or unset) and no key is set: whoever reaches this
           node may use it. Give args.host the one address to serve on, or set a key: under [engine.secrets],
           VLLM_API_KEY = "/etc/sparkd/api.key".

A key does not close everything: vLLM guards /v1 and a few more, while /invocations, which runs whole completions,
/tokenize, /metrics, /health and others answer without it. Where strangers reach the node, let a firewall or a proxy
decide, for cluster.master_port too. Under Ray (executor: ray) every node opens ports of Ray's on every address, and
runs what it is asked to: from Ray 2.52 on only with a token of the cluster's key, before that for anybody.

Ports of other programs that listen on all addresses are shown, and not judged.""",
    )

    @classmethod
    def of(cls, plan: LaunchPlan) -> Listeners:
        named = {name for name, _ in plan.env} | {secret.name for secret in plan.secrets}
        return cls(
            host=flag(plan.argv, "--host"),
            api_port=plan.api_port,
            master_port=plan.master_port,
            has_key=API_KEY in named or bool(flag(plan.argv, "--api-key")),
            serves=plan.node.rank == 0,
            nodes=plan.node.cluster_size,
        )

    def probe(self, host: Host) -> ListenersFacts:
        ports = {one.port for one in host.listeners() if one.address in ALL_ADDRESSES}
        return ListenersFacts(tuple(sorted(ports))[:SHOWN])

    def judge(self, facts: ListenersFacts) -> Verdict:  # noqa: ARG002  # evidence alone
        if not self.serves:
            return Verdict(Level.OK, "this rank serves no API")
        open_to_all = _all_addresses(self.host)
        if open_to_all and not self.has_key:
            reason = f"the API will answer whoever reaches port {self.api_port} of this node: on all addresses, no key"
            hint = f'set {API_KEY} = "/etc/sparkd/api.key" under [engine.secrets], or args.host to one address'
            return Verdict(Level.WARN, reason, hint)
        where = "all addresses, with a key" if open_to_all else self.host
        ranks = f"; ranks meet on port {self.master_port}" if self.nodes > 1 else ""
        return Verdict(Level.OK, f"the API on {where}: port {self.api_port}{ranks}")


def _all_addresses(host: str) -> bool:
    try:
        return host in ALL_ADDRESSES or ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def flag(argv: tuple[str, ...], name: str) -> str:
    """The last value, as vLLM's parser has it: `--flag value` or `--flag=value`."""
    found = ""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        flag, equals, value = word.partition("=")
        if flag == name:
            found = value if equals else following
    return found
