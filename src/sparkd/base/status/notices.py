"""Messages to people that follow from a node's reports, one for each change.

Pure, and times are UTC seconds: what was reported is kept on disk, so that a restart of the agent repeats nothing.

An agent reports the end of its rank in phase FAILED, if it comes to that, and its successor as `last_cause`. Both may
be observed, or one alone. So an end is known by the incarnation of the agent that ended: the report's own in FAILED,
else the one before it.
"""

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.base.lib.errors import Cause
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_clock, format_duration
from sparkd.base.status.model import IN_SERVICE, UNKNOWN_RANK, Contact, NodeReport, Phase

SERVING, SWITCHED, LOST, DEGRADED = "serving", "switched", "lost", "degraded"
MEMORY_GUARD, NEEDS_PERSON, SUMMARY, TEST = "memory-guard", "needs-person", "summary", "test"
TITLES = {NEEDS_PERSON: "needs a person", MEMORY_GUARD: "memory ran out", SUMMARY: "comes and goes"}

MEMORY = (Cause.MEMORY_GUARD, Cause.MEMORY_TAKEN)
PATIENCE_SECONDS = {Phase.BLOCKED: 300.0, Phase.AWAITING_DOCKER: 300.0, Phase.AWAITING_PEERS: 900.0}
"""Seconds after which a phase needs a person: before, it may end by itself. Another node may just be booting."""
FAILED_STARTS = 2
"""Number of failed starts of one node in a row that is a message; five need a person."""
FAILED_KEPT = 32
TEXT_LIMIT = 800
"""Discord takes 2,000 characters, and escaping may double a text."""


class Notice(Struct, frozen=True):
    event: str
    node: str
    text: str
    recipe: str = ""
    cause: str = ""
    """A `Cause`, where one is known."""
    at: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.node}: {TITLES.get(self.event, self.event)}"

    @property
    def stamp(self) -> str:
        return format_clock(self.at)


class Queued(Struct, frozen=True):
    notice: Notice
    ways: tuple[str, ...]
    """Ways by which it is still to be sent."""


class NotifyState(Struct, frozen=True):
    """Events that were reported, and messages that are still to be sent."""

    serving: bool = False
    recipe: str = ""
    """The recipe that served last."""
    lost_at: float | None = None
    """Since when it does not serve, though nobody requested that."""
    incarnation: str = ""
    """Incarnation of the agent that was last observed."""
    before: str = ""
    """The incarnation before this one."""
    guarded: str = ""
    """The incarnation whose memory guard was reported."""
    failed: tuple[str, ...] = ()
    """Rank and incarnation of each agent that waited after a failed start, since the last service."""
    failing: tuple[str, ...] = ()
    """Causes of failed starts that were reported."""
    degraded_at: float | None = None
    degraded_reported: bool = False
    waits_at: float | None = None
    waits_reported: tuple[str, ...] = ()
    """Phases, each reported once until the node has come further."""
    down: str = ""
    """The reported text about a unit that stays down."""
    changes: tuple[float, ...] = ()
    """Times at which the last messages of changes were queued."""
    held: tuple[Notice, ...] = ()
    """Changes for the next summary."""
    queue: tuple[Queued, ...] = ()
    dropped: int = 0
    settings: Mapping[str, object] = field(default_factory=dict)
    """The section `notify`, for where the configuration can't be read."""

    @property
    def pending(self) -> bool:
        """Whether a message may become due without a new report."""
        return bool(self.queue or self.held) or self.degraded_at is not None or self.waits_at is not None


Step = tuple[NotifyState, Notice | None]
Rule = Callable[[NotifyState, NodeReport, float], Step]
"""The next state by a report at a time, and the message that follows."""


def observe(
    state: NotifyState, report: NodeReport, now: float, degraded_seconds: float
) -> tuple[NotifyState, tuple[Notice, ...]]:
    """The next state, and the messages that follow from the report. It may have been observed before."""
    if report.incarnation != state.incarnation and report.rank != UNKNOWN_RANK:
        # A wait and a degraded service end with their agent. No end of an agent without a rank is noted.
        state = replace(state, incarnation=report.incarnation, before=state.incarnation)
        state = replace(state, degraded_at=None, degraded_reported=False, waits_at=None)
    if not _speaks_for_cluster(report):
        return replace(state, waits_at=None, waits_reported=(), down=""), ()
    notices: list[Notice] = []
    note_degraded: Rule = partial(_note_degraded, after_seconds=degraded_seconds)
    of_head: tuple[Rule, ...] = (_note_service, note_degraded) if report.rank == 0 else ()
    # The memory guard's rule first: its message replaces the one that the service is lost.
    for rule in (_note_memory_guard, *of_head, _note_waiting, _note_failing):
        state, notice = rule(state, report, now)
        notices += [notice] if notice is not None else []
    return state, tuple(notices)


def _speaks_for_cluster(report: NodeReport) -> bool:
    """The head speaks for the cluster, a worker only where its head's machine is silent: else two report one event."""
    return not any(peer.rank == 0 and peer.contact in (Contact.ANSWERS, Contact.REFUSED) for peer in report.peers)


def _make_notice(event: str, report: NodeReport, text: str, now: float, cause: str = "") -> Notice:
    return Notice(event, sanitize(report.node, 64), sanitize(text, TEXT_LIMIT), report.recipe, cause, now)


def _note_service(state: NotifyState, report: NodeReport, now: float) -> Step:
    """A message that the service begins, or that it is lost and nobody requested that."""
    if report.phase in IN_SERVICE:
        return (state, None) if state.serving else _begin_service(state, report, now)
    has_failed = report.phase is Phase.FAILED
    if not state.serving or (has_failed and not report.cause):  # the agent still looks for the cause
        return state, None
    state = replace(state, serving=False)
    reason, cause = (report.message, report.cause) if has_failed else (report.last_cause, report.last_cause_code)
    if report.phase in (Phase.STOPPING, Phase.STOPPED) or not reason:
        return state, None  # on request
    state = replace(state, lost_at=now)
    if state.guarded == _find_ended(state, report):  # the memory guard's message says it
        return state, None
    return state, _make_notice(LOST, report, f"{state.recipe} no longer serves: {reason}", now, cause)


def _begin_service(state: NotifyState, report: NodeReport, now: float) -> Step:
    event, text = SERVING, f"{report.recipe} serves: {report.message}"
    if state.recipe not in ("", report.recipe):
        event, text = SWITCHED, f"{state.recipe} was replaced; {text}"
    if state.lost_at is not None:
        text += f"; it was away for {format_duration(max(0.0, now - state.lost_at))}"
    elif report.last_cause:  # not reported yet: a load that failed, or a switch
        text += f"; before: {report.last_cause}"
    state = replace(state, serving=True, recipe=report.recipe, lost_at=None, down="")
    return state, _make_notice(event, report, text, now, report.last_cause_code)


def _find_ended(state: NotifyState, report: NodeReport) -> str:
    """The incarnation whose end this report shows; empty where that agent was not observed."""
    return report.incarnation if report.phase is Phase.FAILED else state.before


def _note_memory_guard(state: NotifyState, report: NodeReport, now: float) -> Step:
    """A message in place of `lost`. The head also reports a worker's guard.

    Where an agent could not report its own guard, the next one does.
    """
    if report.phase is Phase.FAILED:
        others = (peer.report for peer in report.peers if peer.report is not None)
        was_killed = any(node.phase is Phase.FAILED and node.cause in MEMORY for node in (report, *others))
        text, cause = report.message, report.cause
    else:
        was_killed, text, cause = report.last_cause_code in MEMORY, report.last_cause, report.last_cause_code
    ended = _find_ended(state, report)
    if not was_killed or ended in ("", state.guarded):
        return state, None
    return replace(state, guarded=ended), _make_notice(MEMORY_GUARD, report, text, now, cause)


def _note_degraded(state: NotifyState, report: NodeReport, now: float, after_seconds: float) -> Step:
    """A message of a degraded service that lasts, and one that it serves again."""
    since = state.degraded_at if state.degraded_at is not None else now
    lasted = format_duration(max(0.0, now - since))
    if report.phase is Phase.DEGRADED:
        state = replace(state, degraded_at=since)
        if state.degraded_reported or now - since < after_seconds:
            return state, None
        text = f"degraded for {lasted}: {report.message}"
        return replace(state, degraded_reported=True), _make_notice(DEGRADED, report, text, now)
    over = replace(state, degraded_at=None, degraded_reported=False)
    if not state.degraded_reported or report.phase is not Phase.SERVING:
        return over, None
    return over, _make_notice(SERVING, report, f"no longer degraded, after {lasted}: {report.message}", now)


def _note_waiting(state: NotifyState, report: NodeReport, now: float) -> Step:
    """A message where a person must help. That of a head names the other node that it waits for."""
    if report.phase in (Phase.PREFLIGHT, Phase.FAILED):  # between two tries
        return state, None
    if report.phase not in PATIENCE_SECONDS:
        return replace(state, waits_at=None, waits_reported=(), down=""), None
    since = now if state.waits_at is None else state.waits_at
    state = replace(state, waits_at=since)
    phases = (report.phase, *(peer.living.phase for peer in report.peers if peer.living))
    patience = min(PATIENCE_SECONDS[phase] for phase in phases if phase in PATIENCE_SECONDS)
    waited = now - since
    if report.phase.value in state.waits_reported or waited < patience:
        return state, None
    text = f"{report.phase.value} for {format_duration(waited)}: {report.message}"
    state = replace(state, waits_reported=(*state.waits_reported, report.phase.value))
    return state, _make_notice(NEEDS_PERSON, report, text, now)


def _note_failing(state: NotifyState, report: NodeReport, now: float) -> Step:
    """A message for starts that fail in a row: from the second one on, once for each cause."""
    if report.phase in (*IN_SERVICE, Phase.STOPPED):
        return replace(state, failed=(), failing=()), None
    known = (report, *(peer.living for peer in report.peers if peer.living))
    waiting = {f"{node.rank} {node.incarnation}": node for node in known if node.phase is Phase.COOLING}
    failed = tuple(dict.fromkeys((*state.failed, *waiting)))[-FAILED_KEPT:]
    state = replace(state, failed=failed)
    for node in waiting.values():  # one launch may fail on several nodes
        starts = sum(name.startswith(f"{node.rank} ") for name in failed)
        if starts >= FAILED_STARTS and node.last_cause_code not in state.failing:
            state = replace(state, failing=(*state.failing, node.last_cause_code)[-FAILED_KEPT:])
            text = f"{report.recipe} fails to start on {node.node}: {node.last_cause}; {node.message}"
            return state, _make_notice(LOST, report, text, now, node.last_cause_code)
    return state, None


def unit_down(
    state: NotifyState, node: str, unit: str, code: str, status: str, now: float
) -> tuple[NotifyState, tuple[Notice, ...]]:
    """A message that systemd does not start a unit again, once until the node has come further.

    `status`: the unit's last one.
    """
    reason = status or f"journalctl -u {unit}"
    text = sanitize(f"{unit} ended with exit code {code} and stays down: {reason}", TEXT_LIMIT)
    if text == state.down:
        return state, ()
    state = replace(state, down=text, serving=False, lost_at=state.lost_at or (now if state.serving else None))
    return state, (Notice(NEEDS_PERSON, sanitize(node, 64), text, state.recipe, at=now),)
