"""The RDMA devices of this node's fabric: which there are, and whether the plan names them."""

from functools import partial

from sparkd.agent.daemon.context import Agent
from sparkd.agent.preflight.checks.rdma import BY_RDMA, BY_TCP, Rdma
from sparkd.base.host import infiniband, network
from sparkd.base.lib.errors import OutdatedPlanError


def read_rdma(agent: Agent) -> tuple[tuple[str, ...], str]:
    """The devices of the fabric's interface, and the transport that NCCL can use here.

    The transport is empty where devices can't be read: then NCCL decides.
    """
    files, node = agent.host.files, agent.plan.node
    # The address may have been moved to another port since the plan was made.
    interface = agent.settings.fabric.interface or network.interface_of(files, node.address) or node.interface
    hcas = infiniband.hcas_of(files, interface)
    check = Rdma(agent.plan, agent.settings)
    try:
        return hcas, check.transport(check.probe(agent.host))
    except (OSError, ValueError):
        return hcas, ""


def note_late_rdma(agent: Agent) -> None:
    """Report RDMA devices that came up after `fingerprint`, with the link to a node that boots later.

    Raises OutdatedPlanError where the plan lacks their names.
    """
    if agent.reporter.report.transport != BY_TCP:
        return
    unknown: tuple[tuple[str, ...], str] = ((), "")
    hcas, transport = agent.look(partial(read_rdma, agent), 10.0, "looking at the RDMA devices", unknown)
    if transport == BY_RDMA:
        check_hcas(agent, hcas)
        agent.reporter.update(transport=transport)


def check_hcas(agent: Agent, current: tuple[str, ...]) -> None:
    """Raises OutdatedPlanError where the node has other RDMA devices now than when the plan was made, which names them.

    A port's second device may come up late, or with the other node. Without it the link is half as fast. NCCL pairs the
    devices of two nodes by index, so a node with half of them can't connect.
    """
    planned = agent.plan.node.hcas
    if current and planned != current and not agent.settings.fabric.hcas and agent.plan.names_hcas:
        planned_text = f"were {','.join(planned)}" if planned else "there were none"
        reason = f"the fabric's RDMA devices are {','.join(current)} now, and {planned_text} when this run began"
        raise OutdatedPlanError(reason, "sparkd restarts with them")
