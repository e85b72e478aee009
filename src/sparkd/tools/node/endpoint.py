"""How clients reach the endpoint of this node: address, key, context, state."""

from __future__ import annotations

from typing import NamedTuple

from sparkd.base.cluster.membership import NodeContext
from sparkd.base.host import Host, network, weights
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.model import NodeReport, Phase, read_living_report
from sparkd.base.vllm.args import API_KEY, LOOPBACK
from sparkd.base.vllm.flag import first_values, parse_amount
from sparkd.base.vllm.lint.predicates import parse_limits

TEXT_LIMIT = 300


class State(NamedTuple):
    """Of the head, as this node's report has it."""

    serving: bool
    text: str


def find_address(plan: LaunchPlan, host: Host) -> tuple[str, str]:
    """Where clients reach the head, and what there is to know about that."""
    given = plan.api_host
    wildcard = given == LOOPBACK and first_values(plan.argv).get("host") not in (LOOPBACK, "localhost")
    if not wildcard:
        local = given in (LOOPBACK, "localhost", "::1")
        return given, "only the head itself reaches it: args.host of the recipe is that address" if local else ""
    if plan.node.rank:
        return plan.node.head_address, "the head's address on the fabric; for that on your network, run this there"
    if outward := network.source_address(host.files):
        return outward, ""
    return plan.node.address, "this node has no route to other networks: take the address that your clients reach"


def context_tokens(plan: LaunchPlan, host: Host) -> int | None:
    """None where a script of the user's own decides, and where neither flag nor model says."""
    if plan.user_script:
        return None
    flag = first_values(plan.argv).get("max-model-len")
    return parse_amount(flag) if flag else parse_limits(weights.read_config(host.files, plan.model_path)).max_length


def find_key(node: NodeContext) -> tuple[bool, str]:
    """Whether clients need a key, and the file that has it: a worker that follows its head knows of none."""
    files = {**node.recipe.secrets, **node.settings.engine.secrets}
    return API_KEY in files, files.get(API_KEY, "")


def read_state(host: Host) -> State:
    report = read_living_report(host.files)
    if report is None:
        return State(False, "no agent runs on this node: systemctl status sparkd-head")
    head = report if report.rank == 0 else _head_of(report)
    if head is None:
        return State(False, "the head does not answer: sparkd status")
    text = sanitize(": ".join(filter(None, (head.phase.value, head.message))), TEXT_LIMIT)
    return State(head.phase in (Phase.SERVING, Phase.DEGRADED), text)


def _head_of(report: NodeReport) -> NodeReport | None:
    return next((one.living for one in report.peers if one.rank == 0), None)
