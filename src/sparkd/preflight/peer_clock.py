"""The clocks of the other nodes, as far as they have been heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict
from sparkd.report import living
from sparkd.report.node_report import Contact, parse

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files
    from sparkd.report.node_report import NodeReport

APART_SECONDS = 5.0
"""Clocks that chrony or timesyncd keep differ by milliseconds; an answer's date has whole seconds."""


class PeerClock(Struct, frozen=True):
    node: str
    address: str
    ahead_seconds: float


class PeerClockFacts(Struct, frozen=True):
    clocks: tuple[PeerClock, ...]
    """Of the nodes that answer."""


class PeerClocks(Check[PeerClockFacts], frozen=True):
    """Clocks that agree, so that the journals of the nodes can be read side by side. It never blocks."""

    nodes: int
    id: ClassVar[str] = "peer-clock"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="the living agent's /run/sparkd/report.json: the date of each other node's last answers",
        source="DESIGN: sparkd's own signatures need no clocks; journals, TLS and tokens do",
        page="""\
Every answer of another node's agent carries its date. The agent of this node compares it with its own clock and keeps
the difference in its report (peers[].clock_ahead_seconds), which this check reads.

  warn     a clock differs by more than 5 s. Lines of two journals can't be put in order then, certificates and tokens
           may be refused, and "since" of the other node is wrong in `sparkd status`. Which of the two is wrong is not
           known here: timedatectl tells on each. A DGX Spark that was off for long, without a way to the internet, has
           no one to ask: let chrony on one node serve the others.

sparkd itself compares no clocks: waits and deadlines are told by each node's own monotonic clock. A node that has not
been heard yet (its agent is off, or this node's has just begun) is not judged; a node alone is ok.""",
    )

    def probe(self, host: Host) -> PeerClockFacts:
        report = _living_report(host.files) if self.nodes > 1 else None
        if report is None:
            return PeerClockFacts(())
        return PeerClockFacts(
            tuple(
                PeerClock(peer.report.node if peer.report else "", peer.address, peer.clock_ahead_seconds)
                for peer in report.peers
                if peer.contact is Contact.ANSWERS and peer.clock_ahead_seconds is not None
            )
        )

    def judge(self, facts: PeerClockFacts) -> Verdict:
        if self.nodes == 1:
            return Verdict(Level.OK, "one node")
        if not facts.clocks:
            return Verdict(Level.OK, "no other node has been heard yet")
        problems = [_apart(one) for one in facts.clocks if abs(one.ahead_seconds) > APART_SECONDS]
        return verdict(problems, f"{len(facts.clocks)} of {self.nodes - 1} heard, within {APART_SECONDS:g} s")


def _apart(clock: PeerClock) -> Problem:
    name = f"{clock.node} ({clock.address})" if clock.node else clock.address
    side = "ahead of" if clock.ahead_seconds > 0 else "behind"
    reason = f"the clock of {name} is {abs(clock.ahead_seconds):.0f} s {side} this node's"
    return Problem(Level.WARN, reason, "look at both: timedatectl")


def _living_report(files: Files) -> NodeReport | None:
    """None where no agent lives: what one before has heard is old."""
    report = parse(living.text(files))
    return report if report is not None and living.is_alive(files, report) else None
