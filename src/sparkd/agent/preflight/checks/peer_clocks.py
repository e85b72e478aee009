"""Clocks of the other nodes, as their answers show them, against this node's."""

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, combine_verdicts, ok, warn
from sparkd.base.host import Host
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.model import Contact, read_living_report

APART_SECONDS = 5.0
"""Clocks may differ so much. Those kept by chrony or timesyncd differ by milliseconds; an answer's date has seconds."""


class PeerClock(Struct, frozen=True):
    node: str
    address: str
    ahead_seconds: float


class PeerClockFacts(Struct, frozen=True):
    clocks: tuple[PeerClock, ...]


class PeerClocks(Check[PeerClockFacts], frozen=True):
    plan: LaunchPlan
    id = "peer-clock"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> PeerClockFacts:
        report = read_living_report(host.files) if self.plan.node.cluster_size > 1 else None
        if report is None:
            return PeerClockFacts(())
        clocks = (
            PeerClock(peer.report.node if peer.report else "", peer.address, peer.clock_ahead_seconds)
            for peer in report.peers
            if peer.contact is Contact.ANSWERS and peer.clock_ahead_seconds is not None
        )
        return PeerClockFacts(tuple(clocks))

    def judge(self, facts: PeerClockFacts) -> Verdict:
        peer_count = self.plan.node.cluster_size - 1
        if not peer_count:
            return ok("one node")
        if not facts.clocks:
            return ok("no other node has been heard yet")
        return combine_verdicts(
            (_judge_apart(clock) for clock in facts.clocks if abs(clock.ahead_seconds) > APART_SECONDS),
            f"{len(facts.clocks)} of {peer_count} heard, within {APART_SECONDS:g} s",
        )


def _judge_apart(clock: PeerClock) -> Verdict:
    name = f"{clock.node} ({clock.address})" if clock.node else clock.address
    side = "ahead of" if clock.ahead_seconds > 0 else "behind"
    reason = f"the clock of {name} is {abs(clock.ahead_seconds):.0f} s {side} this node's"
    return warn(reason, "look at both: timedatectl")
