"""A report as text: one row per node of a cluster, or a few lines for a single node. Pure."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from sparkd.lib.text import Parts, Table, sanitize
from sparkd.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    format_duration,
    seconds_since,
)

HEADINGS = ("RANK", "NODE", "PHASE", "SINCE", "MEMORY", "PROGRESS", "CAUSE")
TEXT_LIMIT, NAME_LIMIT = 2000, 64
"""Characters of what others wrote."""
LABEL_WIDTH = 10
LEVELS = {Phase.SERVING: "ok", Phase.DEGRADED: "warn", Phase.BLOCKED: "block", Phase.FAILED: "block"}
CONTACTS = {
    Contact.UNHEARD: "not heard yet",
    Contact.ANSWERS: "answers",
    Contact.REFUSED: "refused",
    Contact.SILENT: "silent for {age}",
    Contact.UNSIGNED: "unsigned",
}


class View(Struct, frozen=True):
    """How a report is looked at."""

    now: datetime
    alive: bool
    """Whether the agent that wrote the report still runs: if not, its news of the other nodes is old."""

    def age(self, stamp: str) -> str:
        return format_duration(seconds_since(stamp, self.now))

    def own_phase(self, report: NodeReport) -> str:
        return report.phase.value if self.alive else f"{report.phase.value} (its agent is gone)"


def render(report: NodeReport, view: View) -> Parts:
    shown = _table(report, view) if report.peers else _alone(report, view)
    findings = _findings(report)
    return [shown, *([""] if report.peers and findings.rows else []), findings]


def _alone(report: NodeReport, view: View) -> Table:
    rank = f"rank {report.rank}" if report.rank >= 0 else "rank not known yet"
    rows = {
        "node": f"{_name(report.node)}, {rank} ({_name(report.role)})",
        "phase": view.own_phase(report),
        "since": f"{view.age(report.since)} ({_name(report.since)})",
        "message": sanitize(report.message, TEXT_LIMIT),
        "memory": _memory(report.memory),
        "engine": _name(report.engine.container_id[:12]),
        "plan": _name(report.plan_digest[:12]),
        "last cause": sanitize(report.last_cause, TEXT_LIMIT),
    }
    return Table([(name.ljust(LABEL_WIDTH), value) for name, value in rows.items() if value])


def _table(report: NodeReport, view: View) -> Table:
    """A cause is cut to its line on a terminal: a table of eight nodes stays one."""
    own = (*_place(report.rank, report.node, report.address), view.own_phase(report), *_state(report, view))
    rows = [(report.rank, own, _level(report, heard=view.alive))]
    for peer in report.peers:
        heard = view.alive and peer.contact is Contact.ANSWERS
        rows.append((peer.rank, _peer_row(peer, view, heard=heard), _level(peer.report, heard=heard)))
    _, cells, levels = zip(*sorted(rows), strict=True)
    return Table([HEADINGS, *cells], ["", *levels], heading=True, one_line=True)


def _level(report: NodeReport | None, *, heard: bool) -> str:
    return LEVELS.get(report.phase, "") if report and heard else "unknown"


def _peer_row(peer: PeerStatus, view: View, *, heard: bool) -> tuple[str, ...]:
    report = peer.report
    place = _place(peer.rank, report.node if report else "", peer.address)
    if report is not None and heard:
        return (*place, report.phase.value, *_state(report, view))
    age = view.age(peer.since)
    last_known = f" ({report.phase.value})" if report else ""
    phase = (CONTACTS[peer.contact].format(age=age) if view.alive else "not known") + last_known
    # Figures of a silent node are worth nothing. Why there is no answer, and what its last report says of it:
    reason = sanitize(peer.said, TEXT_LIMIT) if peer.contact in (Contact.SILENT, Contact.UNSIGNED) else ""
    return (*place, phase, age if view.alive else "", "", "", _with_last(reason, _cause(report) if report else ""))


def _place(rank: int, node: str, address: str) -> tuple[str, str]:
    name, shown = _name(node), _name(address)
    return str(rank), f"{name} ({shown})" if name and shown else name or shown


def _state(report: NodeReport, view: View) -> tuple[str, ...]:
    progress, done = "", report.engine.progress
    if report.phase in (Phase.LAUNCHING, Phase.LOADING):
        progress = f"{_name(report.engine.phase)}{f' {done:.0%}' if done is not None else ''}"
    return view.age(report.since), _memory(report.memory), progress, _cause(report)


def _memory(memory: MemoryReport | None) -> str:
    return f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} GiB free" if memory else ""


def _gib(count: int) -> str:
    return f"{min(count, 1 << 60) / 2**30:.1f}"  # a number that another node wrote may be too large for a float


def _cause(report: NodeReport) -> str:
    """The present message and the last cause, each only where it is news."""
    message = "" if report.phase in (Phase.LOADING, Phase.SERVING) else sanitize(report.message, TEXT_LIMIT)
    return _with_last(message, sanitize(report.last_cause, TEXT_LIMIT))


def _with_last(now: str, before: str) -> str:
    return "; last: ".join(part for part in (now, before) if part)


def _findings(report: NodeReport) -> Table:
    """Those that are not good: this node's, then those of the nodes that are known, which are named."""
    known = [(report, ""), *((peer.report, f"{_name(peer.report.node)}: ") for peer in report.peers if peer.report)]
    bad = [(prefix, finding) for one, prefix in known for finding in one.findings if finding.level != "ok"]
    bad += [(prefix, FindingReport("last cause", "hint", one.last_hint, "")) for one, prefix in known if one.last_hint]
    levels = [_name(finding.level) for _, finding in bad]
    texts = [f"{prefix}{_name(one.id)}: {sanitize(one.reason, TEXT_LIMIT)}" for prefix, one in bad]
    return Table([(level.ljust(LABEL_WIDTH), text) for level, text in zip(levels, texts, strict=True)], levels)


def _name(text: str) -> str:
    return sanitize(text, NAME_LIMIT)
