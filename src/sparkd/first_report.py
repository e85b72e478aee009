"""The report that a life begins with."""

from __future__ import annotations

import os

from msgspec.structs import replace

from sparkd import __version__
from sparkd.host import Host
from sparkd.host.processes import parse_stat
from sparkd.report.node_report import NodeReport, Phase, utc_now
from sparkd.roles import NodeContext

UNKNOWN_RANK = -1


def first_report(context: NodeContext, host: Host, invocation: str, last_cause: str) -> NodeReport:
    address = context.plan.node.address if context.peers else ""
    begun = _begun(host, invocation, context.role, context.rank, Phase.PREFLIGHT)
    return replace(begun, address=address, last_cause=last_cause)


def placeless_report(role: str, host: Host, invocation: str, message: str) -> NodeReport:
    """While the address is awaited that tells the node's rank."""
    return replace(_begun(host, invocation, role, UNKNOWN_RANK, Phase.AWAITING_PEERS), message=message)


def _begun(host: Host, invocation: str, role: str, rank: int, phase: Phase) -> NodeReport:
    stat = parse_stat(host.files.bytes("/proc/self/stat"))
    return NodeReport(
        node=host.name(),
        role=role,
        rank=rank,
        phase=phase,
        since=utc_now(),
        epoch="",
        incarnation=invocation,
        version=__version__,
        pid=os.getpid(),
        start_time=stat.start_time if stat else 0,
    )
