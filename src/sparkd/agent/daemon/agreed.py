"""What all ranks must share, as this start has read it; and what differs: in other nodes' plans, since the last good
start.
"""

from __future__ import annotations

from msgspec import Struct, field

from sparkd.agent.cluster.client import UnsignedError
from sparkd.agent.daemon.context import Agent, Context
from sparkd.base.host import Host, versions
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.text import sanitize
from sparkd.base.plan import agreement
from sparkd.base.plan.agreement import PLAN_PATH, Agreement
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.state.known_good import (
    LOOKED_AT,
    Facts,
    excerpt_values,
    find_differences,
    group_files,
    node_values,
    read_known_good,
)
from sparkd.base.status.model import PeerStatus
from sparkd.base.status.phases import PHASES
from sparkd.base.status.publisher import Reporter

BOOT_SECONDS = 2.0
"""Limit for the kernel's command line, swap and settings: milliseconds."""


class Agreed(Struct):
    """Used by the main thread."""

    host: Host
    loop: MainLoop
    plan: LaunchPlan
    reporter: Reporter
    agreement: Agreement = Agreement({}, "")
    """No digest before `keep`."""

    def forget(self) -> None:
        """A start begins: whatever a blocked one has read is read again."""
        self.agreement = Agreement({}, "")

    def keep(self, agreement: Agreement) -> None:
        """Raises BlockedError (exit 10) where this start has read something else before."""
        if self.agreement.digest not in ("", agreement.digest):
            raise BlockedError("the image, the model or the script has changed meanwhile", "sparkd checks the new one")
        self.agreement = agreement

    def facts(self) -> Facts:
        """The facts that a later start is compared with."""
        fingerprinted = bool(self.agreement.digest)
        values = self.agreement.values if fingerprinted else self.plan.shared
        unseen = {} if fingerprinted else dict.fromkeys(LOOKED_AT, "the start ended before this was read")
        reported = self.reporter.report.versions
        sysctls = [name for name, _ in self.plan.sysctls]
        try:
            software, boot = self.loop.beside(
                lambda: (reported or versions.read_local_versions(self.host), versions.read_boot(self.host, sysctls)),
                BOOT_SECONDS,
                "facts of this boot",
                shielded=True,
            )
        except OSError as error:
            software, boot = reported, {}
            unseen.update(dict.fromkeys(("boot", "sysctl"), str(error)))
        return Facts({**dict(values), **node_values(self.plan)}, software, boot, unseen)


TABLE_PRIORITY = 3
"""Errors, as syslog(3) numbers them."""


class PlanDifferences(Struct):
    """Used by the main thread."""

    agent: Context
    agreed: Agreed
    _reported: dict[str, object] = field(default_factory=dict)
    """Differences by node, as last logged."""

    def check(self, peers: tuple[PeerStatus, ...]) -> None:
        """Raises BlockedError (exit 10)."""
        if (differing := self._find(peers)) is not None:
            raise BlockedError(self._report(differing), self._hint(differing))
        self._reported.clear()

    def _find(self, peers: tuple[PeerStatus, ...]) -> PeerStatus | None:
        """A node with another plan. One that is ending may come back with this one."""
        known = ("", self.agent.reporter.report.plan_digest)
        for peer in peers:
            if peer.living and peer.living.plan_digest not in known:
                rule = PHASES[peer.living.phase]
                if rule.loss is None or rule.ahead:
                    return peer
        return None

    def _report(self, other: PeerStatus) -> str:
        """Log the table of differences; return one line."""
        agent, plan_differs = self.agent, f"the plan of {other.name} differs"
        try:
            sent = agent.loop.beside(agent.monitor.readers[other.rank].fetch(PLAN_PATH), 15.0, other.address)
        except (HttpError, UnsignedError, TimeoutError) as error:
            return f"{plan_differs}, and its values can't be read: {error}"
        theirs = agreement.parse_values(sent)
        if theirs is None:
            return f"{plan_differs}, and its values are not valid: another version of sparkd?"
        differences = agreement.find_differences(self.agreed.agreement.values, theirs)
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

    def _hint(self, other: PeerStatus) -> str:
        if (follower := self.agent.follower) is not None and follower.unproven is not None:
            return follower.unproven.hint
        own = self.agent.reporter.report.version
        if other.living and (theirs := other.living.version) != own:
            upgrade = "make both the same first, on the older: sudo apt install --only-upgrade sparkd"
            return f"sparkd is {own} here and {theirs} on {other.name}: {upgrade}"
        switch = self.agent.context.switch
        back = switch.chosen if switch is not None else None
        if back is None or not back.proven:
            return "make the configuration, the image and the model the same on all nodes"
        to = f"sudo sparkd rollback {back.plan[:12]}"
        return f"this node is rolled back: {to} on the others, or sudo sparkd rollback --end here"


MOST_LINES = 12
NAME_LIMIT = 80
DIFF_HINT = "sparkd diff; to go back to it: sudo sparkd rollback"


def log_differences(agent: Agent) -> None:
    """Log what differs in a failed start from the last known good one."""
    if not (known := agent.store.try_read(read_known_good)):
        return
    differences = group_files(find_differences(known[0].facts, agent.agreed.facts()))
    for difference in differences[:MOST_LINES]:
        then, now = excerpt_values(difference)
        name, hint = sanitize(difference.name, NAME_LIMIT), DIFF_HINT if difference is differences[-1] else ""
        agent.events.warning("known_good.value.changed", name=name, then=then, now=now, hint=hint)
    if len(differences) > MOST_LINES:
        agent.events.warning("known_good.values.omitted", count=len(differences) - MOST_LINES, hint=DIFF_HINT)
    if not differences:
        hint = "configuration unchanged since the last good start; see the engine log above"
        agent.events.warning("known_good.values.unchanged", since=known[0].until, hint=hint)
