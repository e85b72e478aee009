"""Whether the other nodes have this node's plan, and in which values it differs."""

from __future__ import annotations

from sparkd.agent.cluster.client import UnsignedError
from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.context import Context
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.plan import agreement
from sparkd.base.plan.agreement import PLAN_PATH
from sparkd.base.status.model import NodeReport, PeerStatus
from sparkd.base.status.phases import PHASES

VALUES_SECONDS = 15.0
TABLE_PRIORITY = 3
"""Errors, as syslog(3) numbers them."""


class PlanDifferences:
    """For the main thread."""

    def __init__(self, agent: Context, agreed: Agreed) -> None:
        self._agent = agent
        self._agreed = agreed
        self._reported: dict[str, object] = {}
        """By node, as last logged."""

    def check(self, peers: tuple[PeerStatus, ...]) -> None:
        """Raises BlockedError (exit 10)."""
        if (differing := self._find(peers)) is not None:
            raise BlockedError(self._report(differing), self._hint())
        self._reported.clear()

    def _find(self, seen: tuple[PeerStatus, ...]) -> PeerStatus | None:
        """A node with another plan. One that is ending may come back with this one."""
        own = self._agent.reporter.report.plan_digest
        active = (peer for peer in seen if peer.living and not _is_ending(peer.living))
        return next((peer for peer in active if peer.living and peer.living.plan_digest not in ("", own)), None)

    def _report(self, other: PeerStatus) -> str:
        """Log the table of differences; return one line."""
        agent, plan_differs = self._agent, f"the plan of {other.name} differs"
        try:
            sent = agent.loop.beside(agent.monitor.readers[other.rank].fetch(PLAN_PATH), VALUES_SECONDS, other.address)
        except (HttpError, UnsignedError, TimeoutError) as error:
            return f"{plan_differs}, and its values can't be read: {error}"
        theirs = agreement.parse_values(sent)
        if theirs is None:
            return f"{plan_differs}, and its values are not valid: another version of sparkd?"
        differences = agreement.find_differences(self._agreed.agreement.values, theirs)
        if not differences:
            return f"{plan_differs} in nothing that this version of sparkd knows"
        summary = agreement.format_summary(differences)
        report = agent.reporter.report
        if self._reported.get(other.name) != differences:
            self._reported[other.name] = differences
            agent.events.error("cluster.plan.mismatched", node=other.name, found=summary)
            for row in agreement.format_table(differences, report.node, other.report.node if other.report else "there"):
                # Not as events, which would lose the columns.
                agent.journal.put(TABLE_PRIORITY, agent.redact(f"plan| {row}"), keep=True)
        return f"{plan_differs}: {summary}"

    def _hint(self) -> str:
        switch = self._agent.context.switch
        back = switch.chosen if switch is not None else None
        if back is None or not back.proven:
            return "make the configuration, the image and the model the same on all nodes"
        to = f"sudo sparkd rollback {back.plan[:12]}"
        return f"this node is rolled back: {to} on the others, or sparkd rollback --end here"


def _is_ending(report: NodeReport) -> bool:
    rule = PHASES[report.phase]
    return rule.loss is not None and not rule.ahead
