"""What a person sees of a report: one row for each node of the cluster, or a few lines of a node alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import assert_never

from msgspec import Struct

from sparkd.host.harmless import harmless
from sparkd.report.ages import seconds_since, words
from sparkd.report.node_report import Contact, MemoryReport, NodeReport, PeerReport, Phase

HEADINGS = ("RANK", "NODE", "PHASE", "SINCE", "MEMORY", "PROGRESS", "CAUSE")
TEXT_LIMIT, NAME_LIMIT = 2000, 64
"""Characters of what others wrote."""
CAUSE_WIDTH = 24
"""Characters of a cause that a terminal shows at least, however narrow it is."""


class View(Struct, frozen=True):
    """How a report is looked at."""

    now: datetime
    alive: bool
    """Whether the agent that wrote the report still runs: if not, its news of the other nodes is old."""
    width: int | None = None
    """Columns of the terminal; None where there is none, and nothing is shortened."""


def render(report: NodeReport, view: View) -> str:
    lines = _table(report, view) if report.peers else _alone(report, view)
    findings = list(_findings(report))
    return "\n".join([*lines, *([""] if report.peers and findings else []), *findings])


def _alone(report: NodeReport, view: View) -> list[str]:
    rows = [
        ("node", f"{_name(report.node)}, {_rank(report)} ({_name(report.role)})"),
        ("phase", _own_phase(report, view)),
        ("since", f"{words(seconds_since(report.since, view.now))} ({_name(report.since)})"),
        ("message", harmless(report.message, TEXT_LIMIT)),
        ("memory", _memory(report.memory)),
        ("engine", _name(report.engine.container_id[:12])),
        ("plan", _name(report.plan_digest[:12])),
        ("last cause", harmless(report.last_cause, TEXT_LIMIT)),
    ]
    return [f"{name:<11} {value}" for name, value in rows if value]


def _rank(report: NodeReport) -> str:
    return f"rank {report.rank}" if report.rank >= 0 else "rank not known yet"


def _table(report: NodeReport, view: View) -> list[str]:
    rows = [(report.rank, _own_row(report, view)), *((peer.rank, _peer_row(peer, view)) for peer in report.peers)]
    cells = [HEADINGS, *(row for _, row in sorted(rows))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS) - 1)]
    before = sum(widths) + 2 * len(widths)
    left = None if view.width is None else max(CAUSE_WIDTH, view.width - before)
    return [_line(row, widths, left) for row in cells]


def _line(row: tuple[str, ...], widths: list[int], left: int | None) -> str:
    *fixed, cause = row
    shown = cause if left is None else harmless(cause, left)
    return "  ".join([*(cell.ljust(width) for cell, width in zip(fixed, widths, strict=True)), shown]).rstrip()


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
    said = harmless(peer.said, TEXT_LIMIT) if peer.contact in (Contact.SILENT, Contact.UNSIGNED) else ""
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
    message = "" if report.phase in (Phase.LOADING, Phase.SERVING) else harmless(report.message, TEXT_LIMIT)
    last = harmless(report.last_cause, TEXT_LIMIT)
    return "; last: ".join(part for part in (message, last) if part) if message else last


def _findings(report: NodeReport) -> Iterator[str]:
    """Those that are not good: this node's, then those of the nodes that are known, which are named."""
    known = [(report, ""), *((peer.report, f"{_name(peer.report.node)}: ") for peer in report.peers if peer.report)]
    for one, prefix in known:
        for finding in one.findings:
            if finding.level != "ok":
                text = f"{prefix}{_name(finding.id)}: {harmless(finding.reason, TEXT_LIMIT)}"
                yield f"{_name(finding.level):<11} {text}"


def _name(text: str) -> str:
    return harmless(text, NAME_LIMIT)
