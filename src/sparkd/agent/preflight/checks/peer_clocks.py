"""Peer clocks: how far apart this node's clock and those of the other nodes are, by the report of its agent."""

from __future__ import annotations

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, combine_verdicts, ok, warn
from sparkd.base.host import Host
from sparkd.base.plan.inputs import CheckInputs
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
    nodes: int
    id = "peer-clock"
    levels = (Level.WARN,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> PeerClocks:
        return cls(inputs.plan.node.cluster_size)

    def probe(self, host: Host) -> PeerClockFacts:
        report = read_living_report(host.files) if self.nodes > 1 else None
        if report is None:
            return PeerClockFacts(())
        clocks = (
            PeerClock(peer.report.node if peer.report else "", peer.address, peer.clock_ahead_seconds)
            for peer in report.peers
            if peer.contact is Contact.ANSWERS and peer.clock_ahead_seconds is not None
        )
        return PeerClockFacts(tuple(clocks))

    def judge(self, facts: PeerClockFacts) -> Verdict:
        if self.nodes == 1:
            return ok("one node")
        if not facts.clocks:
            return ok("no other node has been heard yet")
        problems = []
        for clock in facts.clocks:
            if abs(clock.ahead_seconds) > APART_SECONDS:
                name = f"{clock.node} ({clock.address})" if clock.node else clock.address
                side = "ahead of" if clock.ahead_seconds > 0 else "behind"
                reason = f"the clock of {name} is {abs(clock.ahead_seconds):.0f} s {side} this node's"
                problems.append(warn(reason, "look at both: timedatectl"))
        return combine_verdicts(problems, f"{len(facts.clocks)} of {self.nodes - 1} heard, within {APART_SECONDS:g} s")
