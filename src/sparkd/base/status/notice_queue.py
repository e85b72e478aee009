"""The messages that are still to be sent; changes that flap are held back for a summary. Pure, times as in notices."""

from collections import Counter

from msgspec.structs import replace

from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_duration
from sparkd.base.status.notices import NEEDS_PERSON, SUMMARY, TEXT_LIMIT, Notice, NotifyState, Queued

FLAP_CHANGES, FLAP_SECONDS = 3, 600.0
"""Changes beyond this number in this time are held back."""
SUMMARY_SECONDS = 900.0
"""Time between two summaries."""
QUEUE_LIMIT, QUEUE_SECONDS = 100, 86400.0


def enqueue(state: NotifyState, notices: tuple[Notice, ...], ways: tuple[str, ...], now: float) -> NotifyState:
    """Queue what is to be sent now: changes that flap are held for a summary. The oldest of the queue are dropped."""
    for notice in notices:
        recent = tuple(at for at in state.changes if 0 <= now - at < FLAP_SECONDS)
        if notice.event == NEEDS_PERSON:
            state = _add_to_queue(state, notice, ways)
        elif state.held or len(recent) >= FLAP_CHANGES:
            state = replace(state, held=(*state.held, notice)[-QUEUE_LIMIT:])
        else:
            state = _add_to_queue(replace(state, changes=(*recent, now)), notice, ways)
    if len(state.held) == QUEUE_LIMIT or (state.held and not 0 <= now - state.held[0].at < SUMMARY_SECONDS):
        # The next change is held back, too, unless FLAP_SECONDS have been quiet.
        state = replace(_add_to_queue(state, _summarize(state.held, now), ways), held=(), changes=(now,) * FLAP_CHANGES)
    fresh = (queued for queued in state.queue if now - queued.notice.at < QUEUE_SECONDS)
    unsent = tuple(queued for queued in fresh if {*queued.ways} & {*ways})[-QUEUE_LIMIT:]
    return replace(state, queue=unsent, dropped=state.dropped + len(state.queue) - len(unsent))


def _add_to_queue(state: NotifyState, notice: Notice, ways: tuple[str, ...]) -> NotifyState:
    return replace(state, queue=(*state.queue, Queued(notice, ways)))


def _summarize(held: tuple[Notice, ...], now: float) -> Notice:
    last = held[-1]
    counts = ", ".join(f"{count} {event}" for event, count in Counter(notice.event for notice in held).items())
    lasted = format_duration(max(0.0, now - held[0].at))
    text = sanitize(f"more in {lasted}: {counts}; the last: {last.event}: {last.text}", TEXT_LIMIT)
    return Notice(SUMMARY, last.node, text, last.recipe, last.cause, now)


def sent(state: NotifyState, queued: Queued, way: str) -> NotifyState:
    """The state after this message was sent by this way."""
    position = state.queue.index(queued)
    remaining = replace(queued, ways=tuple(other for other in queued.ways if other != way))
    rest = (remaining,) if remaining.ways else ()
    return replace(state, queue=(*state.queue[:position], *rest, *state.queue[position + 1 :]))
