"""What is known of one other node at one moment."""

from __future__ import annotations

from msgspec import Struct

from sparkd.report.node_report import Contact, NodeReport, PeerReport, Phase

ENDING = {
    Phase.BLOCKED: "is blocked",
    Phase.FAILED: "failed",
    Phase.STOPPING: "leaves",
    Phase.STOPPED: "has left",
}
"""Phases of a life that launches nothing more, in words."""


class Snapshot(Struct, frozen=True):
    """`heard_at`, monotonic: when the last answer with a right signature came; None while none has come."""

    rank: int
    address: str
    since: str
    """UTC, when the contact became what it is."""
    contact: Contact = Contact.UNHEARD
    heard_at: float | None = None
    report: NodeReport | None = None
    """The last one; whether the node still stands by it is `contact`'s to say."""
    said: str = ""
    """Why there is no answer."""
    clock_ahead_seconds: float | None = None
    """Of this node's clock, by the date of its answers."""

    @property
    def name(self) -> str:
        """As a person knows the node: `spark2 (10.0.0.2)`."""
        return f"{self.report.node} ({self.address})" if self.report else self.address

    @property
    def living(self) -> NodeReport | None:
        """The report of an agent that answers."""
        return self.report if self.contact is Contact.ANSWERS else None

    def as_peer(self) -> PeerReport:
        return PeerReport(
            self.address, self.rank, self.contact, self.since, self.report, self.said, self.clock_ahead_seconds
        )
