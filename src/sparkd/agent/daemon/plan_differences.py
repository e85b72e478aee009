"""Differences between the plans of the nodes: they block a launch, with a table of the values and what to do."""

from msgspec import Struct, field

from sparkd.agent.cluster.client import UnsignedError
from sparkd.agent.daemon.agreed import Agreed
from sparkd.agent.daemon.context import Context
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.plan.agreement import PLAN_PATH, parse_values
from sparkd.base.plan.differences import compare_values, format_summary, format_table
from sparkd.base.status.model import PeerStatus
from sparkd.base.status.phases import PHASES


class PlanDifferences(Struct):
    """What differs between this node's plan and the others'. Used by the main thread."""

    agent: Context
    agreed: Agreed
    _reported: dict[str, object] = field(default_factory=dict)
    """Differences by node, as last logged."""

    def check(self, peers: tuple[PeerStatus, ...]) -> None:
        """Raises BlockedError (exit 10) where the plan of a node differs."""
        if (differing := self._find_differing(peers)) is not None:
            raise BlockedError(self._log_table(differing), self._make_hint(differing))
        self._reported.clear()

    def _find_differing(self, peers: tuple[PeerStatus, ...]) -> PeerStatus | None:
        """The first node with another plan. Nodes that are ending do not count: they may come back with this plan."""
        accepted = ("", self.agent.reporter.report.plan_digest)
        for peer in peers:
            if peer.living and peer.living.plan_digest not in accepted:
                phase_rule = PHASES[peer.living.phase]
                if phase_rule.loss is None or phase_rule.ahead:
                    return peer
        return None

    def _log_table(self, peer: PeerStatus) -> str:
        """Log the table of differences; return one line."""
        agent, plan_differs = self.agent, f"the plan of {peer.name} differs"
        try:
            answer = agent.loop.beside(agent.monitor.readers[peer.rank].fetch(PLAN_PATH), 15.0, peer.address)
        except (HttpError, UnsignedError, TimeoutError) as error:
            return f"{plan_differs}, and its values can't be read: {error}"
        other_values = parse_values(answer.body)
        if other_values is None:
            return f"{plan_differs}, and its values are not valid: another version of sparkd?"
        differences = compare_values(self.agreed.agreement.values, other_values)
        if not differences:
            return f"{plan_differs} in nothing that this version of sparkd knows"
        summary = format_summary(differences)
        report = agent.reporter.report
        if self._reported.get(peer.name) != differences:
            self._reported[peer.name] = differences
            agent.events.error("cluster.plan.mismatched", node=peer.name, found=summary)
            for row in format_table(differences, report.node, peer.report.node if peer.report else "there"):
                # No event, which would lose the columns; 3: an error, as syslog(3) numbers them.
                agent.journal.put(3, agent.redact(f"plan| {row}"), keep=True)
        return f"{plan_differs}: {summary}"

    def _make_hint(self, peer: PeerStatus) -> str:
        if (follower := self.agent.follower) is not None and follower.unproven is not None:
            return follower.unproven.hint
        own_version = self.agent.reporter.report.version
        if peer.living and (peer_version := peer.living.version) != own_version:
            upgrade = "sudo apt install --only-upgrade sparkd; of a file: sudo apt install ./sparkd_*.deb"
            versions = f"sparkd is {own_version} here and {peer_version} on {peer.name}"
            return f"{versions}: make both the same first, on the older: {upgrade}"
        switch = self.agent.context.switch
        rolled_back = switch.chosen if switch is not None else None
        if rolled_back is None or not rolled_back.proven:
            return "make the configuration, the image and the model the same on all nodes"
        command = f"sudo sparkd rollback {rolled_back.plan[:12]}"
        return f"this node is rolled back: {command} on the others, or sudo sparkd rollback --end here"
