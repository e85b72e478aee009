"""Looks at RDMA devices, which may come up late: the plan names them, and NCCL's transport depends on them."""

from contextlib import suppress

from sparkd.agent.daemon.context import Agent
from sparkd.agent.preflight.checks.rdma import BY_RDMA, BY_TCP, Rdma
from sparkd.base.host import infiniband
from sparkd.base.lib.errors import OutdatedPlanError
from sparkd.base.plan.inputs import CheckInputs


def read_transport(agent: Agent) -> str:
    """The transport that NCCL can use here. Empty where devices can't be read: then NCCL decides."""
    check = Rdma.from_inputs(CheckInputs(agent.plan, agent.settings))
    try:
        return check.transport(check.probe(agent.host))
    except (OSError, ValueError):
        return ""


def note_late_rdma(agent: Agent) -> None:
    """Report RDMA devices that came up after `fingerprint`, with the link to a node that boots later.

    Raises OutdatedPlanError where the plan lacks their names.
    """
    if agent.reporter.report.transport != BY_TCP:
        return
    interface = agent.plan.node.interface
    with suppress(OSError):  # a TimeoutError, too
        hcas, transport = agent.loop.beside(
            lambda: (infiniband.hcas_of(agent.host.files, interface), read_transport(agent)),
            10.0,
            "looking at the RDMA devices",
        )
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
