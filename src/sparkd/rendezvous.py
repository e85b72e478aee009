"""How the ranks of an engine come together: by what each node reports, with no command between them.

The workers stand by. Once all of them do, with the plan of the head, the head calls: its report then carries the epoch.
The workers start their ranks in that epoch, and when every one of them runs, the head starts its own. So the order in
which nodes boot does not matter, and no rank of an older launch is there to meet the new head.
"""

from __future__ import annotations

import time

from sparkd.agent import Agent
from sparkd.errors import BlockedError, NotReadyError
from sparkd.host.http import Unanswered
from sparkd.launch import agreement
from sparkd.peers.reader import UnsignedError
from sparkd.peers.snapshot import ENDING, Snapshot
from sparkd.peers.ties import tie
from sparkd.report.node_report import Contact, Phase

POLL_SECONDS = 1.0
"""News ring the bell; this is for what nobody reports."""
SHOWN_SECONDS = 6.0
"""How long a plan that differs is shown to the others, before this node begins anew with what is configured then."""
A_MOMENT_SECONDS = 5.0
VALUES_SECONDS = 15.0
RANKS_SECONDS = 450.0
"""For the workers' ranks to run: docker may take 300 s, a preflight waits 120. vLLM's rendezvous ends after 600."""
DOING_LIMIT = 300
ENDED = frozenset(ENDING) - {Phase.BLOCKED}
TABLE_PRIORITY = 3
"""Errors, as syslog(3) numbers them."""
STARTED = frozenset({Phase.LOADING, Phase.SERVING, Phase.DEGRADED})
"""Phases of a node whose rank runs."""


def await_peers(agent: Agent, shown_seconds: float = SHOWN_SECONDS) -> bool:
    """Wait, for as long as it takes, until this node may launch; whether more than a moment has passed.

    From then on the others are tied to. Raises BlockedError (exit 10) where plans differ.
    """
    began = time.monotonic()
    while True:
        seen = _agreed(agent, agent.together.look(), shown_seconds)
        awaited = _awaited_by_head(agent, seen) if agent.context.is_head else _awaited_by_worker(agent, seen)
        if not awaited:
            break
        agent.phase(Phase.AWAITING_PEERS, f"waiting for {awaited}")
        if not agent.context.is_head:
            agent.stands_by()
        agent.pulse.wait(POLL_SECONDS)
    _warn_of_versions(agent, seen)
    if agent.context.is_head:
        agent.together.tie(tuple(tie(one, agent.incarnation) for one in seen))
    else:
        agent.stands_by()
        agent.together.tie(tuple(tie(one, one.report.epoch) for one in seen[:1] if one.report))
    return time.monotonic() - began > A_MOMENT_SECONDS


def _awaited_by_head(agent: Agent, seen: tuple[Snapshot, ...]) -> str:
    """Workers that do not stand by with the same plan, and what they do instead."""
    plan = agent.reporter.report.plan_digest
    return "; ".join(_doing(one) for one in seen if not _stands_by(one, plan))


def _stands_by(worker: Snapshot, plan_digest: str) -> bool:
    report = worker.living
    if report is None or report.plan_digest != plan_digest:
        return False
    return report.phase is Phase.AWAITING_PEERS and not report.epoch


def _awaited_by_worker(agent: Agent, seen: tuple[Snapshot, ...]) -> str:
    """The head's call."""
    head = seen[0]
    report = head.living
    if report is None or report.phase is not Phase.AWAITING_PEERS:
        return _doing(head)
    if not report.epoch or report.plan_digest != agent.reporter.report.plan_digest:
        return f"{head.name} to call its workers"
    return ""


def _doing(one: Snapshot) -> str:
    """What keeps a node, in a few words."""
    said = one.report.message if one.report and (one.living or one.report.phase in ENDING) else ""
    match one.contact:
        case Contact.ANSWERS if one.report is not None:
            doing = f"{one.name}, which is {one.report.phase.value}" + (f": {said}" if said else "")
        case Contact.REFUSED:
            doing = f"{one.name}, where no sparkd runs" + (f"; its last word: {said}" if said else "")
        case Contact.UNSIGNED:
            doing = f"{one.name}: {one.said}"
        case _:
            doing = f"{one.name}, which does not answer" + (f" ({one.said})" if one.said else "")
    return doing[:DOING_LIMIT]


def _agreed(agent: Agent, seen: tuple[Snapshot, ...], shown_seconds: float) -> tuple[Snapshot, ...]:
    """What is known of the others once every one that answers has this node's plan. Raises BlockedError."""
    deadline = time.monotonic() + shown_seconds
    told: set[str] = set()
    while differing := _differing(agent, seen):
        theirs = differing.report.plan_digest if differing.report else ""
        if theirs not in told:
            told.add(theirs)
            summary = _tell_differences(agent, differing)
            agent.phase(Phase.BLOCKED, summary)
        if time.monotonic() >= deadline:
            raise BlockedError(summary, _remedy(agent))
        agent.pulse.wait(POLL_SECONDS)
        seen = agent.together.look()
    if told:
        agent.phase(Phase.AWAITING_PEERS, "the plans agree again")
    return seen


def _remedy(agent: Agent) -> str:
    back = agent.context.rollback
    if back is None:
        return "make the configuration, the image and the model the same on all nodes"
    return (
        f"this node is rolled back: sudo sparkd rollback {back.plan[:12]} on the others, or sparkd rollback --end here"
    )


def _differing(agent: Agent, seen: tuple[Snapshot, ...]) -> Snapshot | None:
    """A node with another plan. One whose life ends begins the next with what is configured then."""
    own = agent.reporter.report.plan_digest
    going_on = (one for one in seen if one.living and one.living.phase not in ENDED)
    return next((one for one in going_on if one.living and one.living.plan_digest not in ("", own)), None)


def _tell_differences(agent: Agent, other: Snapshot) -> str:
    """The table into the journal; gives one line."""
    try:
        sent = agent.pulse.beside(lambda: agent.together.peers.values(other.rank), VALUES_SECONDS, other.address)
    except (Unanswered, UnsignedError, TimeoutError) as error:
        return f"the plan of {other.name} differs, and its values can't be read: {error}"
    theirs = agreement.parse(sent)
    if theirs is None:
        return f"the plan of {other.name} differs, and its values can't be understood: another version of sparkd?"
    differences = agreement.differences(agent.agreement.values, theirs)
    if not differences:
        return f"the plan of {other.name} differs in nothing that this version of sparkd knows"
    summary = agreement.summary(differences)
    agent.events.error("peers.plan.differs", node=other.name, found=summary)
    if summary in agent.reporter.report.last_cause:
        return f"the plan of {other.name} differs: {summary}"  # the life before has shown the table
    for row in agreement.table(differences, agent.reporter.report.node, other.report.node if other.report else "there"):
        # Not an event: that would close its columns up.
        agent.journal.put(TABLE_PRIORITY, agent.redact(f"plan| {row}"), keep=True)
    return f"the plan of {other.name} differs: {summary}"


def _warn_of_versions(agent: Agent, seen: tuple[Snapshot, ...]) -> None:
    for one in seen:
        if one.report is not None:
            for warning in agreement.warnings(agent.reporter.report.versions, one.report.versions):
                agent.events.warning("peers.version.differs", node=one.name, found=warning)


def enter_epoch(agent: Agent, ranks_seconds: float = RANKS_SECONDS) -> None:
    """Workers answer the call; the head calls, and waits until each of their ranks runs.

    Raises PeerLostError (exit 14), NotReadyError (exit 12).
    """
    if not agent.context.is_head:
        (head, *_) = agent.together.look()
        agent.join_epoch(head.report.epoch if head.report else "")
        return
    deadline = time.monotonic() + ranks_seconds
    if agent.context.peers:
        agent.phase(Phase.AWAITING_PEERS, "calling the workers' ranks")
    agent.join_epoch(agent.incarnation)
    while starting := [one for one in agent.together.look() if not _runs(one, agent.incarnation)]:
        awaited = "; ".join(_doing(one) for one in starting)
        if time.monotonic() >= deadline:
            raise NotReadyError(
                f"not every worker's rank ran within {ranks_seconds:g} s: {awaited}", "look at its journal"
            )
        agent.phase(Phase.AWAITING_PEERS, f"waiting for the rank of {awaited}")
        agent.pulse.wait(POLL_SECONDS)


def _runs(worker: Snapshot, epoch: str) -> bool:
    return worker.report is not None and worker.report.epoch == epoch and worker.report.phase in STARTED
