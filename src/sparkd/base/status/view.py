"""The nodes as a person sees them, made from one report and the time: for tables, the live screen and the page. Pure.

Texts are one line without control characters, and figures are within their bounds, whatever another node has written.
"""

from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.lib.errors import Action
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import DAY_SECONDS, format_duration, seconds_since
from sparkd.base.status.figure_texts import describe_time_left, progress_text, shorten
from sparkd.base.status.figures import ActivityReport, EngineReport
from sparkd.base.status.model import IN_SERVICE, Contact, NodeReport, PeerStatus, Phase, RestartReport
from sparkd.base.status.publisher import status_line

TEXT_LIMIT = 2000
"""Characters of what others wrote."""
LEVELS = {
    Phase.SERVING: "ok",
    Phase.DEGRADED: "warn",
    Phase.COOLING: "warn",
    Phase.AWAITING_DOCKER: "warn",
    Phase.BLOCKED: "block",
    Phase.FAILED: "block",
}
NOTHING = "nothing is to be done"
AFTER_REFUSAL = "do what it says, or look at: sudo sparkd config check"
SERVES = tuple(phase.value for phase in IN_SERVICE)
CONTACTS = {
    Contact.UNHEARD: "not heard yet",
    Contact.ANSWERS: "answers",
    Contact.REFUSED: "refused",
    Contact.SILENT: "silent for {age}",
    Contact.UNSIGNED: "unsigned",
}
ADVICE = {
    Contact.REFUSED: "sparkd status",
    Contact.SILENT: "look at its power, the cable and the switch: ip -brief link; a firewall: sudo ufw status",
    Contact.UNSIGNED: "compare on both: sudo sha256sum /etc/sparkd/cluster.key; sparkd config show; sparkd --version",
}


class View(Struct, frozen=True):
    """What a view needs besides the report."""

    now: datetime
    alive: bool
    """Whether the agent that wrote the report still runs: if not, what it says of the other nodes is old."""
    unit: str = ""
    """ActiveState= of that agent's unit, where none runs; empty where that is not known."""
    said: str = ""
    """What that unit reported last by STATUS=. A start that is refused writes no report."""

    def age(self, stamp: str) -> str:
        return format_duration(seconds_since(stamp, self.now))


class Note(Struct, frozen=True):
    """A finding that is not good, or what to do. `level`: a check's, or `hint`."""

    level: str
    text: str


class Headline(Struct, frozen=True):
    """The state of the whole cluster, which serves where its head does. `level`: as in NodeView."""

    level: str
    text: str
    next: str
    """What to do, or that nothing is."""


class NodeView(Struct, frozen=True):
    """A node, as people see it."""

    rank: int
    name: str
    level: str
    """`ok`, `warn`, `block` or `unknown`; empty in every other phase, such as loading."""
    phase: str
    """The phase; where the node does not answer, the contact."""
    age: str
    """Age of the phase or contact."""
    cause: str
    """The present message and the last cause, each only where it is news."""
    why: str
    """The fault that its findings show."""
    advice: str
    """What to do there, by all that is known."""
    report: NodeReport | None
    """The node's last report."""
    living: NodeReport | None = None
    """`report` of a node that answers; None for another, whose figures are out of date."""
    left: str = ""
    """Time left of the load, by earlier loads."""
    is_awaited: bool = False
    """Whether it has not answered yet, as after a start."""

    @property
    def loading(self) -> EngineReport | None:
        loads = self.living and self.living.phase in (Phase.LAUNCHING, Phase.LOADING)
        return self.living.engine if self.living and loads else None


class Overview(Struct, frozen=True):
    nodes: tuple[NodeView, ...]
    """Nodes in rank order."""
    notes: tuple[Note, ...]
    restarts: tuple[str, ...]
    """Restarts of the last day, a line for each node and cause."""

    @property
    def activity(self) -> ActivityReport | None:
        """Figures of the engine's requests, as its head reports them."""
        return next((node.living.activity for node in self.nodes if node.living and node.living.activity), None)


def overview(report: NodeReport, view: View) -> Overview:
    contact = Contact.ANSWERS if view.alive else Contact.REFUSED
    own_node = _make_node(PeerStatus(report.address, report.rank, contact, report.since, report), view)
    if not view.alive:
        own_node = replace(own_node, phase=f"{report.phase.value} (its agent is gone)", age=view.age(report.since))
    nodes = [own_node, *(_make_node(peer, view) for peer in report.peers)]
    known = [(report, ""), *((peer.report, f"{shorten(peer.report.node)}: ") for peer in report.peers if peer.report)]
    restarts = (f"{prefix}{text}" for node, prefix in known for text in _describe_restarts(node.restarts, view))
    return Overview(tuple(sorted(nodes, key=lambda node: node.rank)), _list_notes(known), tuple(restarts))


def headline(report: NodeReport, view: View) -> Headline:
    if not view.alive:
        return _describe_ended(report, view)
    nodes = overview(report, view).nodes
    head, troubled = nodes[0], [node for node in nodes if node.level not in ("", "ok") and not node.is_awaited]
    if troubled:
        return _describe_trouble(report, head, troubled[0])
    if head.phase == Phase.SERVING.value:
        return Headline("ok", f"serving for {head.age}", NOTHING)
    doing = (progress_text(head.loading) or head.phase, head.left) if head.loading else (head.phase, head.cause)
    what = f"{'loading' if head.loading else 'not serving yet'}: {', '.join(filter(None, doing))}"
    own_hint = head.report.hint if head.report else ""  # such as for an address that this node lacks
    return Headline("", what, sanitize(own_hint, TEXT_LIMIT) or f"{NOTHING}; to follow it: sparkd status --watch")


def _describe_trouble(report: NodeReport, head: NodeView, node: NodeView) -> Headline:
    """The headline where a node needs attention; `node`: the first of them."""
    name = node.name if report.peers else ""  # without a name, the command of a single node can be pasted
    what = ": ".join(filter(None, (name, node.why or node.cause or node.phase)))
    todo = f"{name and f'on {name}: '}{node.advice}" if node.advice else "sudo sparkd logs --since 1d --level warning"
    if head is node and head.level == "unknown":
        return Headline("unknown", f"not known: {what}", todo)
    if head.phase in SERVES:
        return Headline("warn", f"degraded: {what}", todo)
    return Headline("block", f"{'not serving' if node.level == 'warn' else 'blocked'}: {what}", todo)


def _find_trouble(report: NodeReport | None, contact: Contact) -> tuple[str, str]:
    """The fault that a node's findings show, and what to do there by all that is known; each may be empty."""
    blocking = [finding for finding in report.findings if finding.level in ("block", "unknown")] if report else []
    hint = report.hint if report else ""
    if hint and hint not in (finding.hint for finding in blocking):
        blocking = []  # of an earlier round: something else blocks now
    if report and report.phase is Phase.AWAITING_DOCKER:  # an earlier version has the remedy in the message alone
        hint = hint or report.message.partition(": ")[2]
    # The end before is news of a node that waits because of it: what blocks another has a hint of its own.
    last_hint = report.last_hint if report and report.phase is Phase.COOLING else ""
    hints = (ADVICE.get(contact), *(finding.hint for finding in blocking), hint, last_hint)
    why = f"{blocking[0].id}: {blocking[0].reason}" if blocking and contact is Contact.ANSWERS else ""
    return sanitize(why, TEXT_LIMIT), sanitize(next(filter(None, hints), ""), TEXT_LIMIT)


def _describe_ended(report: NodeReport, view: View) -> Headline:
    """The headline where no agent runs."""
    start = f"sudo systemctl start sparkd-{shorten(report.role)}"
    if view.unit == "failed" and view.said not in ("", " ".join(status_line(report).split())):
        return Headline("block", f"not running: {sanitize(view.said, TEXT_LIMIT)}", f"{AFTER_REFUSAL}; then: {start}")
    if report.phase not in (Phase.BLOCKED, Phase.FAILED):
        stopped = report.phase is Phase.STOPPED
        return Headline("unknown", "stopped" if stopped else "not running: its agent is gone", start)
    is_down = view.unit in ("failed", "inactive") or report.action not in ("", Action.NONE)
    look = f"sudo sparkd preflight --dry-run; then: {start}"
    todo = look if is_down else f"{NOTHING}: systemd starts it again"
    return Headline("block", f"{report.phase.value}: {sanitize(report.message, TEXT_LIMIT)}", todo)


def _make_node(peer: PeerStatus, view: View) -> NodeView:
    report = peer.report
    why, advice = _find_trouble(report, peer.contact)
    name = _name_node(report.node if report else "", peer.address)
    if report is not None and view.alive and peer.contact is Contact.ANSWERS:
        level, phase, age = LEVELS.get(report.phase, ""), report.phase.value, view.age(report.since)
        causes = _describe_cause(report)
        node = NodeView(peer.rank, name, level, phase, age, causes, why, advice, report, living=report)
        return replace(node, left=describe_time_left(report.engine, view.now)) if node.loading else node
    age = view.age(peer.since)
    last_known = f" ({report.phase.value})" if report else ""
    phase = (CONTACTS[peer.contact].format(age=age) if view.alive else "not known") + last_known
    # Why there is no answer, then what its last report says:
    reason = sanitize(peer.said, TEXT_LIMIT) if peer.contact in (Contact.SILENT, Contact.UNSIGNED) else ""
    causes = _join_causes(reason, _describe_cause(report) if report else "")
    node = NodeView(peer.rank, name, "unknown", phase, age if view.alive else "", causes, why, advice, report)
    return replace(node, is_awaited=view.alive and peer.contact is Contact.UNHEARD)


def _name_node(node: str, address: str) -> str:
    shown_node, shown_address = shorten(node), shorten(address)
    return f"{shown_node} ({shown_address})" if shown_node and shown_address else shown_node or shown_address


def _describe_cause(report: NodeReport) -> str:
    """The present message with its action, and the last cause; the message only where it is news."""
    message = "" if report.phase in (Phase.LOADING, Phase.SERVING) else sanitize(report.message, TEXT_LIMIT)
    message = "; ".join(filter(None, (message, report.action and f"action: {shorten(report.action)}")))
    return _join_causes(message, sanitize(report.last_cause, TEXT_LIMIT))


def _join_causes(present: str, last: str) -> str:
    return "; last: ".join(part for part in (present, last) if part)


def _list_notes(known: list[tuple[NodeReport, str]]) -> tuple[Note, ...]:
    """Findings that are not good, and hints of last causes: this node's, then those of named other nodes."""
    notes = (note for report, prefix in known for note in _make_notes(report, prefix))
    hints = [(prefix, todo) for node, prefix in known if (todo := _describe_todo(node.last_action, node.last_hint))]
    return (*notes, *(Note("hint", f"{prefix}last cause: {todo}") for prefix, todo in hints))


def _make_notes(report: NodeReport, prefix: str) -> Iterator[Note]:
    """Notes of each finding that is not good: what it says, and what to do on that node."""
    for finding in report.findings:
        if finding.level != "ok":
            yield Note(shorten(finding.level), f"{prefix}{shorten(finding.id)}: {sanitize(finding.reason, TEXT_LIMIT)}")
            if todo := _describe_todo(finding.action, finding.hint):
                yield Note("hint", f"on {shorten(report.node)}: {todo}")


def _describe_todo(action: str, hint: str) -> str:
    """What to do: the hint, or without one the action; empty where neither says that anything is."""
    return sanitize(hint, TEXT_LIMIT) or ("" if action == Action.NONE else shorten(action))


def _describe_restarts(restarts: tuple[RestartReport, ...], view: View) -> list[str]:
    """A text for each of the five latest causes."""
    texts = []
    for restart in restarts:
        age = seconds_since(restart.last, view.now)
        if age is not None and age < DAY_SECONDS:
            count = "" if restart.count == 1 else f" {restart.count} times, last"
            when = f"{shorten(restart.cause) or 'ended'}{count} {format_duration(age)} ago"
            texts.append(f"{when}: {sanitize(restart.reason, TEXT_LIMIT)}")
    return texts[-5:]
