"""Starts the ranks of an engine together, by the reports of the nodes, without commands between them.

Each worker waits in the phase awaiting-peers. Once all workers do so with the head's plan, the head calls: it reports
an epoch. The workers start their ranks in that epoch. When all of these run, the head starts its own. So nodes may boot
in any order, and no rank of an older launch meets the new head.
"""

import math
import time

from sparkd.agent.cluster.monitor import expect_peer
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.head_config import check_head
from sparkd.agent.daemon.rdma import note_late_rdma
from sparkd.agent.preflight.checks.rdma import BY_TCP, TCP_COST, TCP_HINT
from sparkd.base.lib.errors import NotReadyError, OutdatedPlanError
from sparkd.base.plan.differences import compare_versions
from sparkd.base.status.model import Contact, PeerStatus, Phase
from sparkd.base.status.phases import PHASES, find_loss

POLL_SECONDS = 1.0
"""Longest pause between two looks: reports wake the loop earlier."""
RANKS_SECONDS = 450.0
"""Limit for the workers' ranks to run: docker takes up to 300 s, preflight 120. vLLM's rendezvous ends after 600 s."""


def wait_for_peers(agent: Agent) -> bool:
    """Wait, without a deadline, until this node may launch, then track the others.

    Returns whether more than five seconds passed. Raises BlockedError (exit 10) where plans differ, or where RDMA
    devices have come that the plan lacks.
    """
    began = time.monotonic()
    looked_at = -math.inf
    while True:
        if time.monotonic() - looked_at >= agent.pace.rdma_seconds:
            # One node without RDMA makes the head choose TCP for all, for as long as the engine serves.
            note_late_rdma(agent)
            looked_at = time.monotonic()
        peers = agent.monitor.check()
        check_head(agent)
        agent.differences.check(peers)
        describe = _describe_unready_workers if agent.context.is_head else _describe_awaited_head
        if not (awaited := describe(agent, peers)):
            break
        agent.phase.enter(Phase.AWAITING_PEERS, f"waiting for {awaited}")
        _report_worker_ready(agent)
        agent.loop.wait(POLL_SECONDS)
    for peer in peers:
        if peer.report is not None:
            for warning in compare_versions(agent.reporter.report.versions, peer.report.versions):
                agent.events.warning("cluster.version.mismatched", node=peer.name, found=warning)
    _report_worker_ready(agent)
    if agent.context.is_head:
        agent.monitor.track(*(expect_peer(peer, agent.rank_id) for peer in peers))
    else:
        agent.monitor.track(*(expect_peer(head, head.report.epoch) for head in peers[:1] if head.report))
    return time.monotonic() - began > 5.0


def _report_worker_ready(agent: Agent) -> None:
    """Report a worker to systemd as ready once its preflight has passed: the rest depends on the head."""
    if not agent.context.is_head:
        agent.loop.report_ready()


def _describe_unready_workers(agent: Agent, peers: tuple[PeerStatus, ...]) -> str:
    """The workers that do not wait with the same plan, and what they do instead; empty where all wait."""
    ready_state = (Phase.AWAITING_PEERS, "", agent.reporter.report.plan_digest)
    states = ((peer, peer.living and (peer.living.phase, peer.living.epoch, peer.living.plan_digest)) for peer in peers)
    return "; ".join(_describe_peer(peer) for peer, state in states if state != ready_state)


def _describe_awaited_head(agent: Agent, peers: tuple[PeerStatus, ...]) -> str:
    """What the head does instead of calling; empty once it has called."""
    head = peers[0]
    report = head.living
    if report is None or report.phase is not Phase.AWAITING_PEERS:
        return _describe_peer(head)
    if not report.epoch or report.plan_digest != agent.reporter.report.plan_digest:
        return f"{head.name} to call its workers"
    return ""


def _describe_peer(peer: PeerStatus) -> str:
    message = peer.report.message if peer.report and (peer.living or find_loss(peer.report)) else ""
    match peer.contact:
        case Contact.ANSWERS if peer.report is not None:
            state = f"{peer.name}, which is {peer.report.phase.value}" + (f": {message}" if message else "")
        case Contact.REFUSED:
            state = f"{peer.name}, where no sparkd runs" + (f"; its last message: {message}" if message else "")
        case Contact.UNSIGNED:
            state = f"{peer.name}: {peer.said}"
        case _:
            state = f"{peer.name}, which does not answer" + (f" ({peer.said})" if peer.said else "")
    return state[:300]


def join_epoch(agent: Agent, ranks_seconds: float = RANKS_SECONDS) -> None:
    """On a worker, take the head's epoch. On the head, call, and wait until the rank of each worker runs.

    NCCL uses TCP on all nodes where one has no RDMA. Raises PeerLostError (exit 14), NotReadyError (exit 12),
    OutdatedPlanError (exit 10).
    """
    peers = agent.monitor.check()
    if not agent.context.is_head:
        head = peers[0].report
        _report_epoch(agent, head.epoch if head else "", head.transport if head else "")
        return
    deadline = time.monotonic() + ranks_seconds
    if agent.context.peers:
        agent.phase.enter(Phase.AWAITING_PEERS, "calling the workers' ranks")
    reports = (agent.reporter.report, *(peer.report for peer in peers if peer.report))
    nodes_without_rdma = [report.node for report in reports if report.transport == BY_TCP]
    if nodes_without_rdma:
        agent.events.warning(
            "fabric.tcp.chosen",
            without_rdma=nodes_without_rdma,
            reason=f"NCCL can't mix them, {TCP_COST}",
            hint=TCP_HINT,
        )
    _report_epoch(agent, agent.rank_id, BY_TCP if nodes_without_rdma else reports[0].transport)
    while starting := [peer for peer in agent.monitor.check() if not _is_running(peer, agent.rank_id)]:
        awaited = "; ".join(_describe_peer(peer) for peer in starting)
        if time.monotonic() >= deadline:
            raise NotReadyError(
                f"not every worker's rank ran within {ranks_seconds:g} s: {awaited}", "sudo sparkd logs --since 15m"
            )
        agent.phase.enter(Phase.AWAITING_PEERS, f"waiting for the rank of {awaited}")
        agent.loop.wait(POLL_SECONDS)


def _report_epoch(agent: Agent, epoch: str, transport: str) -> None:
    """Report the epoch and the transport of all ranks. Raises OutdatedPlanError where this node has no RDMA for it."""
    if agent.reporter.report.transport == BY_TCP and transport != BY_TCP:
        raise OutdatedPlanError("the RDMA devices of this node have gone since the head called", "sparkd starts again")
    agent.log.bind(epoch=epoch)
    agent.reporter.update(epoch=epoch, transport=transport)


def _is_running(worker: PeerStatus, epoch: str) -> bool:
    return worker.report is not None and worker.report.epoch == epoch and PHASES[worker.report.phase].has_rank
