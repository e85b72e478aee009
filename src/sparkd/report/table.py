"""What a person sees of a report: one row for each node of the cluster, or a few lines of a node alone. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from msgspec import Struct

from sparkd.lib.tables import Parts, Table
from sparkd.lib.text import sanitize
from sparkd.report.ages import seconds_since, words
from sparkd.report.node_report import Contact, MemoryReport, NodeReport, PeerReport, Phase

HEADINGS = ("RANK", "NODE", "PHASE", "SINCE", "MEMORY", "PROGRESS", "CAUSE")
TEXT_LIMIT, NAME_LIMIT = 2000, 64
"""Characters of what others wrote."""
LABEL_WIDTH = 10
LEVELS = {Phase.SERVING: "ok", Phase.DEGRADED: "warn", Phase.BLOCKED: "block", Phase.FAILED: "block"}


class View(Struct, frozen=True):
    """How a report is looked at."""

    now: datetime
    alive: bool
    """Whether the agent that wrote the report still runs: if not, its news of the other nodes is old."""


def render(report: NodeReport, view: View) -> Parts:
    shown = _table(report, view) if report.peers else _alone(report, view)
    findings = _findings(report)
    if not findings.rows:
        return [shown]
    return [shown, "", findings] if report.peers else [shown, findings]


def _alone(report: NodeReport, view: View) -> Table:
    rows = [
        ("node", f"{_name(report.node)}, {_rank(report)} ({_name(report.role)})"),
        ("phase", _own_phase(report, view)),
        ("since", f"{words(seconds_since(report.since, view.now))} ({_name(report.since)})"),
        ("message", sanitize(report.message, TEXT_LIMIT)),
        ("memory", _memory(report.memory)),
        ("engine", _name(report.engine.container_id[:12])),
        ("plan", _name(report.plan_digest[:12])),
        ("last cause", sanitize(report.last_cause, TEXT_LIMIT)),
    ]
    return Table([(name.ljust(LABEL_WIDTH), value) for name, value in rows if value])


def _rank(report: NodeReport) -> str:
    return f"rank {report.rank}" if report.rank >= 0 else "rank not known yet"


def _table(report: NodeReport, view: View) -> Table:
    """A cause is cut to its line on a terminal: a table of eight nodes stays one."""
    rows = [(report.rank, _own_row(report, view), _level(report, heard=view.alive))]
    for peer in report.peers:
        heard = view.alive and peer.contact is Contact.ANSWERS
        rows.append((peer.rank, _peer_row(peer, view), _level(peer.report, heard=heard)))
    rows.sort()
    return Table(
        [HEADINGS, *(row for _, row, _ in rows)], ["", *(level for _, _, level in rows)], heading=True, one_line=True
    )


def _level(report: NodeReport | None, *, heard: bool) -> str:
    return LEVELS.get(report.phase, "") if report and heard else "unknown"


def _own_row(report: NodeReport, view: View) -> tuple[str, ...]:
    return (*_place(report.rank, report.node, report.address), _own_phase(report, view), *_state(report, view))


def _own_phase(report: NodeReport, view: View) -> str:
    return report.phase.value if view.alive else f"{report.phase.value} (its agent is gone)"


def _peer_row(peer: PeerReport, view: View) -> tuple[str, ...]:
    report = peer.report
    place = _place(peer.rank, report.node if report else "", peer.address)
    if report is not None and peer.contact is Contact.ANSWERS and view.alive:
        return (*place, report.phase.value, *_state(report, view))
    age = words(seconds_since(peer.since, view.now))
    last_known = f" ({report.phase.value})" if report else ""
    phase = (_contact(peer.contact, age) if view.alive else "not known") + last_known
    # Figures of a node that nobody hears are worth nothing; why it fell silent may stand in its last report.
    return (*place, phase, age if view.alive else "", "", "", _last_words(peer))


def _last_words(peer: PeerReport) -> str:
    """Why there is no answer, and what it said before."""
    said = sanitize(peer.said, TEXT_LIMIT) if peer.contact in (Contact.SILENT, Contact.UNSIGNED) else ""
    return "; last: ".join(part for part in (said, _cause(peer.report) if peer.report else "") if part)


def _contact(contact: Contact, age: str) -> str:
    match contact:
        case Contact.UNHEARD:
            return "not heard yet"
        case Contact.ANSWERS:
            return "answers"
        case Contact.REFUSED:
            return "refused"
        case Contact.SILENT:
            return f"silent for {age}"
        case Contact.UNSIGNED:
            return "unsigned"
        case unexpected:
            assert_never(unexpected)


def _place(rank: int, node: str, address: str) -> tuple[str, str]:
    name, shown = _name(node), _name(address)
    return str(rank), f"{name} ({shown})" if name and shown else name or shown


def _state(report: NodeReport, view: View) -> tuple[str, ...]:
    since = words(seconds_since(report.since, view.now))
    return since, _memory(report.memory), _progress(report), _cause(report)


def _memory(memory: MemoryReport | None) -> str:
    return f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} GiB free" if memory else ""


def _gib(count: int) -> str:
    return f"{min(count, 1 << 60) / 2**30:.1f}"  # a number that another node wrote may be too large for a float


def _progress(report: NodeReport) -> str:
    if report.phase not in (Phase.LAUNCHING, Phase.LOADING):
        return ""
    done = report.engine.progress
    return f"{_name(report.engine.phase)}{f' {done:.0%}' if done is not None else ''}"


def _cause(report: NodeReport) -> str:
    """What is the matter now, and what ended the life before: each only where it is news."""
    message = "" if report.phase in (Phase.LOADING, Phase.SERVING) else sanitize(report.message, TEXT_LIMIT)
    last = sanitize(report.last_cause, TEXT_LIMIT)
    return "; last: ".join(part for part in (message, last) if part) if message else last


def _findings(report: NodeReport) -> Table:
    """Those that are not good: this node's, then those of the nodes that are known, which are named."""
    rows = []
    known = [(report, ""), *((peer.report, f"{_name(peer.report.node)}: ") for peer in report.peers if peer.report)]
    for one, prefix in known:
        for finding in one.findings:
            if finding.level != "ok":
                text = f"{prefix}{_name(finding.id)}: {sanitize(finding.reason, TEXT_LIMIT)}"
                rows.append((_name(finding.level).ljust(LABEL_WIDTH), text))
    return Table(rows, [level.strip() for level, _ in rows])


def _name(text: str) -> str:
    return sanitize(text, NAME_LIMIT)
