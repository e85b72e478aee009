"""Which messages are sent at once, which become a summary, and how long they wait."""

from sparkd.base.status.notice_queue import QUEUE_LIMIT, QUEUE_SECONDS, enqueue, sent
from sparkd.base.status.notices import Notice, NotifyState

MINUTE = 60.0
WAYS = ("webhook_file",)


def queued(state: NotifyState) -> list[str]:
    return [message.notice.event for message in state.queue]


def change(event: str, minute: float) -> Notice:
    return Notice(event, "spark1", f"{event} at {minute}", at=minute * MINUTE)


def flap(*minutes: float, state: NotifyState | None = None) -> NotifyState:
    state = state or NotifyState()
    for number, minute in enumerate(minutes):
        state = enqueue(state, (change(("lost", "serving")[number % 2], minute),), WAYS, minute * MINUTE)
    return state


def test_three_changes_in_ten_minutes_are_sent_and_more_become_one_summary() -> None:
    state = flap(0, 1, 2, 3, 4, 5)
    assert queued(state) == ["lost", "serving", "lost"]
    assert queued(enqueue(state, (), WAYS, 17.9 * MINUTE)) == queued(state)
    state = enqueue(state, (), WAYS, 18 * MINUTE)
    assert queued(state) == ["lost", "serving", "lost", "summary"]
    assert state.queue[-1].notice.text == ("more in 15 min: 2 serving, 1 lost; the last: serving: serving at 5")


def test_after_a_quiet_interval_each_change_is_sent_again() -> None:
    state = enqueue(flap(0, 1, 2, 3), (), WAYS, 18 * MINUTE)
    assert queued(flap(20, state=state))[-1] == "summary", "it is held back for the next one"
    state = enqueue(state, (), WAYS, 28 * MINUTE)
    assert state.held == ()
    assert queued(flap(29, state=state))[-1] == "lost"


def test_so_many_changes_that_no_quarter_of_an_hour_holds_them_are_summed_up_earlier() -> None:
    state = flap(*(number / 60 for number in range(QUEUE_LIMIT + 3)))
    assert queued(state) == ["lost", "serving", "lost", "summary"]


def test_a_message_that_needs_a_person_is_never_held_back() -> None:
    state = enqueue(flap(0, 1, 2, 3), (change("needs-person", 4),), WAYS, 4 * MINUTE)
    assert queued(state)[-1] == "needs-person"


def test_slow_changes_are_all_sent() -> None:
    assert len(flap(*range(0, 100, 4)).queue) == 25


def test_a_queue_is_bounded_in_number_and_age_and_what_is_dropped_is_counted() -> None:
    state = NotifyState()
    for number in range(QUEUE_LIMIT + 7):
        state = enqueue(state, (change("needs-person", number),), WAYS, number * MINUTE)
    assert len(state.queue) == QUEUE_LIMIT
    assert state.queue[0].notice.text == "needs-person at 7"
    assert state.dropped == 7
    state = enqueue(state, (), WAYS, QUEUE_SECONDS + 56.5 * MINUTE)
    assert len(state.queue) == 50
    assert state.dropped == 57


def test_a_message_stays_until_it_has_gone_by_every_way() -> None:
    state = enqueue(NotifyState(), (change("lost", 0),), ("command", "webhook_file"), 0)
    state = sent(state, state.queue[0], "command")
    assert [message.ways for message in state.queue] == [("webhook_file",)]
    assert sent(state, state.queue[0], "webhook_file").queue == ()
    assert enqueue(state, (), ("command",), 0).queue == (), "a way that is configured no longer"
