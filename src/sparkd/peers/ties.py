"""What a running rank depends on, and when that is gone. Pure.

A rank of tensor parallelism is worth nothing without the others, and vLLM itself tells nobody that one is gone: a
headless worker never notices that its head died, and a head's /health stays 200 without its worker.
"""

from __future__ import annotations

from msgspec import Struct

from sparkd.peers.snapshot import ENDING, Snapshot
from sparkd.report.node_report import Contact


class Tie(Struct, frozen=True):
    """To the life of one other agent. `epoch` is the one that it has entered or may enter."""

    rank: int
    incarnation: str
    epoch: str


class Lost(Struct, frozen=True):
    """Something happened: there is nothing to wait for."""

    reason: str


class Silent(Struct, frozen=True):
    """Nothing was heard for so long; what that means is for the engine to say."""

    seconds: float
    reason: str


def tie(seen: Snapshot, epoch: str) -> Tie:
    assert seen.report is not None
    return Tie(seen.rank, seen.report.incarnation, epoch)


def judge(held: Tie, seen: Snapshot, now: float) -> Lost | Silent:
    """What became of the agent that we are tied to, `now` being monotonic seconds. All is well: silent for a moment."""
    of = f"rank {seen.rank} on {seen.name}"
    report = seen.report
    if report is None:  # none can be tied to who was never heard
        return Lost(f"{of} was never heard")
    if report.incarnation != held.incarnation:
        before = f"; it ended before with: {report.last_cause}" if report.last_cause else ""
        return Lost(f"{of} has begun anew{before}")
    if report.phase in ENDING:
        return Lost(f"{of} {ENDING[report.phase]}: {report.message}")
    if report.epoch not in ("", held.epoch):
        return Lost(f"{of} belongs to another launch")
    if seen.contact is Contact.REFUSED:
        return Lost(f"{of} is gone: {seen.address} refuses connections, its agent ended without a word")
    silent = now - (seen.heard_at or now)
    why = f": {seen.said}" if seen.said else ""
    return Silent(silent, f"{of} has been silent for {silent:.0f} s{why}")
