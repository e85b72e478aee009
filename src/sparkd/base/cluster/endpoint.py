"""The head's endpoint, as its clients reach it: address, URL and key."""

from msgspec.structs import replace

from sparkd.base.cluster.membership import NodeContext
from sparkd.base.host import Host, network
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.figures import EngineReport
from sparkd.base.vllm.args import API_KEY
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag_values import LOOPBACK


def is_local(plan: LaunchPlan) -> bool:
    """Whether the API listens on loopback only (args.host)."""
    return first_values(plan.argv).get("host") in (LOOPBACK, "localhost", "::1")


def find_address(plan: LaunchPlan, host: Host) -> tuple[str, str]:
    """The address at which clients reach the head, and a note about it, which may be empty."""
    if is_local(plan):
        return plan.api_host, "the API listens on loopback only (args.host of the recipe)"
    # It listens on this address alone. With a wildcard api_host is LOOPBACK; {node.address} is on a worker its own.
    if plan.api_host != LOOPBACK and (plan.node.is_head or plan.api_host != plan.node.address):
        return plan.api_host, ""
    if not plan.node.is_head:
        return plan.node.head_address, "the head's address on the fabric; for that on your network, run this there"
    if outward := network.source_address(host.files):
        return outward, ""
    return plan.node.address, "this node has no route to other networks: take the address that your clients reach"


def find_url(plan: LaunchPlan, host: Host) -> tuple[str, str]:
    """The endpoint's URL, as the clients of OpenAI's API need it, and the note of `find_address`."""
    address, note = find_address(plan, host)
    return f"http://{f'[{address}]' if ':' in address else address}:{plan.api_port}/v1", note


def find_key_file(node: NodeContext) -> tuple[bool, str]:
    """Whether clients need a key, and the file; empty without a key, and where only the head names the file."""
    files = {**node.recipe.secrets, **node.settings.engine.secrets}
    return API_KEY in files, files.get(API_KEY, "")


def with_endpoint(engine: EngineReport, node: NodeContext, host: Host) -> EngineReport:
    """The report of a head's engine that serves, with what its clients need."""
    url, _ = find_url(node.plan, host)
    is_keyed, _ = find_key_file(node)
    return replace(engine, url=url, model=node.plan.served_name, keyed=is_keyed)
