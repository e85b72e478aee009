"""Lines of `sparkd init` on a head's endpoint: its key, commands for a firewall, how to try it, and messages."""

from collections.abc import Iterator

from sparkd.base.cluster.endpoint import find_address, find_key_file, find_url, is_local
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.host import Host, network
from sparkd.base.host.files import Files
from sparkd.tools.node.endpoint import request_lines
from sparkd.tools.setup.offers import WEBHOOK_FILE


def describe_endpoint(node: NodeContext, host: Host) -> Iterator[tuple[str, ...]]:
    """Yield names, each with its texts: what protects the API of a head, how to try it, and messages."""
    plan, (has_key, file) = node.plan, find_key_file(node)
    address, note = find_address(plan, host)
    if not is_local(plan):
        if has_key:
            yield "key", file, "vLLM guards /v1 by it: /tokenize, /invocations, /metrics stay open"
        else:
            yield "key", "none: who reaches the port is served. To make one:", "sudo sparkd init --api-key"
        reachable_from = (not note and network.subnet_of(host.files, address)) or "YOUR-NETWORK"
        yield "firewall", *_firewall(host.files, node, reachable_from)
    yield "try", *request_lines(find_url(plan, host)[0], file)
    if not node.settings.notify.configured_ways:
        option = f" --webhook-file {WEBHOOK_FILE}" * host.files.exists(WEBHOOK_FILE)
        yield "messages", "none will come when it fails. To give it a URL for them:", f"sudo sparkd init{option}"


def _firewall(files: Files, node: NodeContext, reachable_from: str) -> Iterator[str]:
    """Yield commands that let only this network and the other nodes reach the API. A person decides on them."""
    port, sources = node.plan.api_port, (reachable_from, *node.settings.cluster.nodes)
    if files.exists("/usr/sbin/ufw") and "ENABLED=yes" in (files.text_if_any("/etc/ufw/ufw.conf") or "").splitlines():
        yield f"sudo ufw allow proto tcp from {reachable_from} to any port {port}"
        # The ranks need all ports of each other, and ufw refuses what nothing allows.
        yield from (f"sudo ufw allow from {peer.address}" for peer in node.peers)
        return
    yield "sudo nft 'table inet sparkd; flush table inet sparkd"
    yield "  table inet sparkd { chain input { type filter hook input priority 0"
    yield f"  tcp dport {port} iif lo accept"
    for source in sources:
        yield f"  tcp dport {port} {'ip6' if ':' in source else 'ip'} saddr {source} accept"
    yield f"  tcp dport {port} drop; }}; }}'   # until the next boot"
