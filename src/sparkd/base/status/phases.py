"""The phases of an agent: which may follow which, and what the other nodes expect of each."""

from typing import NamedTuple

from sparkd.base.lib.errors import Cause
from sparkd.base.status.model import IN_SERVICE, NodeReport, Phase


class Loss(NamedTuple):
    """What the nodes that depend on an agent report as their loss, once it is in such a phase."""

    text: str
    """It follows the agent's name: `rank 1 on spark-b leaves`."""
    cause: Cause


class PhaseRule(NamedTuple):
    next: frozenset[Phase]
    """What may follow in the same process."""
    ahead: bool = False
    """The launch of the rank is still ahead."""
    has_rank: bool = False
    """The rank runs."""
    loss: Loss | None = None
    """None: who depends on this node continues."""


_OVER = frozenset({Phase.STOPPING, Phase.FAILED})
_AHEAD = frozenset({Phase.PREFLIGHT, Phase.BLOCKED, Phase.COOLING, Phase.AWAITING_DOCKER, Phase.AWAITING_PEERS})

_BEFORE_LAUNCH = PhaseRule(_AHEAD | {Phase.LAUNCHING} | _OVER, ahead=True)

PHASES = {
    Phase.PREFLIGHT: _BEFORE_LAUNCH,
    # A blocked agent that checks again stays BLOCKED until nothing blocks: a repeated preflight is not reported.
    Phase.BLOCKED: _BEFORE_LAUNCH._replace(loss=Loss("is blocked", Cause.PEER_FAILED)),
    Phase.COOLING: _BEFORE_LAUNCH,
    Phase.AWAITING_DOCKER: _BEFORE_LAUNCH,
    Phase.AWAITING_PEERS: _BEFORE_LAUNCH,
    Phase.LAUNCHING: PhaseRule(frozenset({Phase.LOADING, Phase.BLOCKED}) | _OVER),
    # A worker has no endpoint of its own: its next phase is the one of its head.
    Phase.LOADING: PhaseRule(frozenset({Phase.SERVING, Phase.DEGRADED}) | _OVER, has_rank=True),
    Phase.SERVING: PhaseRule(frozenset({Phase.DEGRADED}) | _OVER, has_rank=True),
    Phase.DEGRADED: PhaseRule(frozenset({Phase.SERVING}) | _OVER, has_rank=True),
    Phase.STOPPING: PhaseRule(frozenset({Phase.STOPPED}), loss=Loss("leaves", Cause.PEER_STOPPED)),
    Phase.STOPPED: PhaseRule(frozenset(), loss=Loss("has left", Cause.PEER_STOPPED)),
    Phase.FAILED: PhaseRule(frozenset(), loss=Loss("failed", Cause.PEER_FAILED)),
}


def may_follow(before: Phase, after: Phase) -> bool:
    return after is before or after in PHASES[before].next


def find_loss(report: NodeReport) -> Loss | None:
    """The loss that others report of this node; None while they can depend on its rank, also while it drains."""
    return None if report.draining else PHASES[report.phase].loss


def answers_requests(report: NodeReport) -> bool:
    """Whether a head's engine serves, also while it drains."""
    return report.draining or report.phase in IN_SERVICE
