"""Which messages follow from a series of reports: each row is one series."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import HEAD_REPORT, PEER, WORKER

from sparkd.base.lib.errors import Cause
from sparkd.base.status import notices
from sparkd.base.status.model import Contact, NodeReport, PeerStatus, Phase
from sparkd.base.status.notices import Notice, NotifyState

MINUTE = 60.0
DEGRADED_SECONDS = 10 * MINUTE
LOADING = replace(HEAD_REPORT, phase=Phase.LOADING, last_cause="", recipe="tiny", peers=())
SERVING = replace(LOADING, phase=Phase.SERVING)
DEGRADED = replace(LOADING, phase=Phase.DEGRADED, message="spark2 is silent; the engine answers")
FAILED = replace(LOADING, phase=Phase.FAILED, message="the engine ended", cause="engine-ended")
GUARDED = replace(FAILED, message="1 MiB available", cause="memory-guard")
STOPPING = replace(LOADING, phase=Phase.STOPPING, message="stop requested")
BLOCKED = replace(LOADING, phase=Phase.BLOCKED, message="9 GiB available, 96 GiB needed")
PREFLIGHT = replace(LOADING, phase=Phase.PREFLIGHT, message="")
AWAITING = replace(LOADING, phase=Phase.AWAITING_PEERS, message="waiting for spark2, where no sparkd runs")
AWAITING_DOCKER = replace(LOADING, phase=Phase.AWAITING_DOCKER, message="waiting for dockerd")
KILLED = replace(
    PREFLIGHT, incarnation="next", last_cause="the previous agent was killed", last_cause_code="agent-killed"
)
OUT_OF_MEMORY = replace(KILLED, last_cause="1 MiB available (exit 16)", last_cause_code="memory-guard")
OTHER = replace(SERVING, recipe="large")


def cooling(incarnation: str, code: str = "engine-ended") -> NodeReport:
    """Before the next launch, after a failed one."""
    message = "5 s before the next launch of a plan that failed"
    return replace(
        LOADING,
        phase=Phase.COOLING,
        incarnation=incarnation,
        message=message,
        last_cause="it broke (exit 13)",
        last_cause_code=code,
    )


HEAD_STATUS = PeerStatus("10.0.0.1", 0, Contact.ANSWERS, "", SERVING)
ALONE = replace(HEAD_STATUS, contact=Contact.SILENT)


def follow(*reports: tuple[float, NodeReport], state: NotifyState | None = None) -> tuple[NotifyState, list[Notice]]:
    """Each report at its minute."""
    state = state or NotifyState()
    messages: list[Notice] = []
    for minute, report in reports:
        state, new = notices.observe(state, report, minute * MINUTE, DEGRADED_SECONDS)
        messages += new
    return state, messages


def events(reports: Iterable[tuple[float, NodeReport]]) -> list[str]:
    return [notice.event for notice in follow(*reports)[1]]


def worker(report: NodeReport, head: PeerStatus) -> NodeReport:
    return replace(report, node="spark2", role="worker", rank=1, peers=(head,))


def beside(report: NodeReport, other: NodeReport | None, contact: Contact = Contact.ANSWERS) -> NodeReport:
    return replace(report, peers=(replace(PEER, contact=contact, report=other),))


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(0, LOADING), (9, SERVING), (10, SERVING)], ["serving"]),
        ([(0, SERVING), (1, STOPPING), (2, replace(SERVING, incarnation="next"))], ["serving", "serving"]),
        ([(0, SERVING), (1, FAILED), (1.1, FAILED), (9, SERVING)], ["serving", "lost", "serving"]),
        ([(0, SERVING), (1, replace(FAILED, cause="")), (1.1, FAILED)], ["serving", "lost"]),
        ([(0, SERVING), (1, KILLED), (9, replace(SERVING, incarnation="next"))], ["serving", "lost", "serving"]),
        ([(0, SERVING), (1, replace(PREFLIGHT, incarnation="next"))], ["serving"]),
        ([(0, LOADING), (1, FAILED), (2, LOADING), (3, FAILED)], []),
        ([(0, SERVING), (1, STOPPING), (2, FAILED), (3, OTHER)], ["serving", "switched"]),
        ([(0, SERVING), (1, FAILED), (2, OTHER), (3, OTHER)], ["serving", "lost", "switched"]),
        ([(0, SERVING), (1, GUARDED), (1.1, GUARDED), (9, SERVING)], ["serving", "memory-guard", "serving"]),
        ([(0, LOADING), (1, GUARDED), (1.1, GUARDED)], ["memory-guard"]),
        ([(0, SERVING), (1, replace(FAILED, cause="memory-taken"))], ["serving", "memory-guard"]),
        ([(0, SERVING), (1, DEGRADED), (10.9, DEGRADED), (11, SERVING)], ["serving"]),
        ([(0, SERVING), (1, DEGRADED), (11, DEGRADED), (20, DEGRADED)], ["serving", "degraded"]),
        ([(0, SERVING), (1, DEGRADED), (11, DEGRADED), (12, SERVING)], ["serving", "degraded", "serving"]),
        ([(0, DEGRADED), (11, DEGRADED), (12, FAILED)], ["serving", "degraded", "lost"]),
        ([(0, SERVING), (1, DEGRADED), (9, SERVING), (10, DEGRADED), (12, DEGRADED)], ["serving"]),
        ([(0, BLOCKED), (4.9, BLOCKED)], []),
        ([(0, BLOCKED), (5, BLOCKED), (60, BLOCKED)], ["needs-person"]),
        ([(0, BLOCKED), (4, PREFLIGHT), (5, BLOCKED), (6, PREFLIGHT), (12, BLOCKED)], ["needs-person"]),
        ([(0, BLOCKED), (6, BLOCKED), (7, LOADING), (8, BLOCKED), (14, BLOCKED)], ["needs-person", "needs-person"]),
        ([(0, BLOCKED), (6, BLOCKED), (7, replace(BLOCKED, incarnation="n")), (14, replace(BLOCKED, incarnation="n"))],
         ["needs-person"]),
        ([(0, BLOCKED), (4, replace(BLOCKED, incarnation="n"))], []),
        ([(0, AWAITING_DOCKER), (5, AWAITING_DOCKER)], ["needs-person"]),
        ([(0, AWAITING), (14, AWAITING), (15, AWAITING), (99, AWAITING)], ["needs-person"]),
        ([(0, replace(AWAITING, rank=-1)), (15, replace(AWAITING, rank=-1))], ["needs-person"]),
        ([(0, cooling("a")), (1, LOADING)], []),
        ([(0, cooling("a")), (0.1, cooling("a")), (1, FAILED), (2, cooling("b")), (2.1, cooling("b")), (3, FAILED),
          (4, cooling("c"))], ["lost"]),
        ([(0, cooling("a")), (1, cooling("b")), (2, cooling("c", "not-ready"))], ["lost", "lost"]),
        ([(0, cooling("a")), (1, SERVING), (2, FAILED), (3, cooling("b"))], ["serving", "lost"]),
        ([(0, SERVING), (1, FAILED), (2, cooling("b")), (3, FAILED), (4, cooling("c"))], ["serving", "lost", "lost"]),
        ([(0, cooling("a")), (1, replace(LOADING, phase=Phase.STOPPED)), (2, cooling("b"))], []),
        ([(0, SERVING), (1, OUT_OF_MEMORY), (2, replace(OUT_OF_MEMORY, phase=Phase.LOADING))],
         ["serving", "memory-guard"]),
        ([(0, SERVING), (1, GUARDED), (2, OUT_OF_MEMORY)], ["serving", "memory-guard"]),
        ([(0, SERVING), (1, replace(GUARDED, cause="")), (2, OUT_OF_MEMORY)], ["serving", "memory-guard"]),
        ([(0, SERVING), (1, GUARDED), (2, replace(AWAITING, rank=-1, incarnation="unplaced")), (3, OUT_OF_MEMORY)],
         ["serving", "memory-guard"]),
        ([(0, LOADING), (1, OUT_OF_MEMORY), (2, replace(GUARDED, incarnation="next"))],
         ["memory-guard", "memory-guard"]),
        ([(0, SERVING), (1, OUT_OF_MEMORY), (2, replace(OUT_OF_MEMORY, phase=Phase.SERVING)),
          (3, replace(FAILED, incarnation="next"))], ["serving", "memory-guard", "serving", "lost"]),
        ([(0, OUT_OF_MEMORY)], []),
    ],
)  # fmt: skip
def test_one_message_for_each_change(reports: list[tuple[float, NodeReport]], expected: list[str]) -> None:
    assert events(reports) == expected


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(0, worker(SERVING, HEAD_STATUS)), (1, worker(FAILED, HEAD_STATUS))], []),
        ([(0, worker(BLOCKED, HEAD_STATUS)), (9, worker(BLOCKED, HEAD_STATUS))], []),
        ([(0, worker(GUARDED, HEAD_STATUS))], []),
        ([(0, worker(AWAITING, replace(HEAD_STATUS, contact=Contact.REFUSED))),
          (99, worker(AWAITING, replace(HEAD_STATUS, contact=Contact.REFUSED)))], []),
        ([(0, worker(SERVING, HEAD_STATUS)), (1, worker(FAILED, ALONE))], []),
        ([(0, worker(AWAITING, ALONE)), (15, worker(AWAITING, ALONE))], ["needs-person"]),
        ([(0, worker(BLOCKED, ALONE)), (5, worker(BLOCKED, ALONE))], ["needs-person"]),
        ([(0, worker(GUARDED, ALONE))], ["memory-guard"]),
    ],
)  # fmt: skip
def test_a_worker_speaks_only_where_its_heads_machine_is_silent(
    reports: list[tuple[float, NodeReport]], expected: list[str]
) -> None:
    assert events(reports) == expected


def test_the_head_reports_a_workers_memory_guard_in_one_message() -> None:
    lost = replace(FAILED, message="spark2 failed: memory guard", cause=Cause.PEER_FAILED)
    failed = replace(WORKER, phase=Phase.FAILED, cause=Cause.MEMORY_GUARD)
    assert events([(0, beside(SERVING, WORKER)), (1, beside(lost, failed))]) == ["serving", "memory-guard"]


def test_the_head_reports_a_blocked_worker_as_soon_as_itself() -> None:
    waiting = beside(AWAITING, replace(WORKER, phase=Phase.BLOCKED))
    assert events([(0, waiting), (5, waiting)]) == ["needs-person"]


def test_the_head_waits_longer_for_a_blocked_worker_that_is_silent() -> None:
    silent = beside(AWAITING, replace(WORKER, phase=Phase.BLOCKED), Contact.SILENT)
    assert events([(0, silent), (5, silent)]) == []


def test_the_head_reports_a_worker_whose_starts_fail_with_the_cause_and_the_wait() -> None:
    starts = [(minute, beside(AWAITING, replace(cooling(name), node="spark2"))) for minute, name in enumerate("abc")]
    _, (lost,) = follow(*starts)
    assert lost.event == "lost"
    assert lost.cause == "engine-ended"
    assert lost.text == (
        "tiny fails to start on spark2: it broke (exit 13); 5 s before the next launch of a plan that failed"
    )


def test_a_launch_that_fails_on_both_nodes_counts_once_and_each_cause_is_reported_once() -> None:
    def cycle(minute: float, name: str) -> list[tuple[float, NodeReport]]:
        there = replace(cooling(f"{name}-there", "not-ready"), node="spark2", rank=1)
        here = replace(AWAITING, incarnation=name)
        return [(minute, beside(cooling(name), there)), (minute + 0.1, beside(here, there)), (minute + 1, here)]

    assert events(cycle(0, "a")) == []
    assert events([*cycle(0, "a"), *cycle(2, "b"), *cycle(4, "c"), *cycle(6, "d")]) == ["lost", "lost"]


def test_texts_say_what_was_lost_and_for_how_long() -> None:
    _, (_, lost, back, switched) = follow((0, SERVING), (1, FAILED), (10, SERVING), (11, STOPPING), (12, OTHER))
    assert lost.title == "spark1: lost"
    assert lost.text == "tiny no longer serves: the engine ended"
    assert lost.cause == "engine-ended"
    assert back.text == "tiny serves: tiny on port 8000; it was away for 9 min"
    assert switched.text == "tiny was replaced; large serves: tiny on port 8000"


def test_a_service_after_a_failed_switch_says_what_failed() -> None:
    tiny_again = replace(
        SERVING, incarnation="next", last_cause="back to tiny, large did not come up", last_cause_code="c"
    )
    _, (_, back) = follow((0, SERVING), (1, STOPPING), (2, FAILED), (9, tiny_again))
    assert back.text == "tiny serves: tiny on port 8000; before: back to tiny, large did not come up"
    assert back.cause == "c"


def test_a_text_is_one_bounded_line_without_control_characters() -> None:
    hostile = replace(FAILED, node="a\r\nb", message="\x1b[2J\r\nX: y\u202e" + "x" * 9000)
    _, (_, lost) = follow((0, SERVING), (1, hostile))
    assert lost.text.isprintable()
    assert len(lost.text) <= notices.TEXT_LIMIT
    assert lost.title.isprintable()


def test_a_clock_that_goes_back_makes_no_negative_time() -> None:
    assert follow((9, SERVING), (8, FAILED), (2, SERVING))[1][-1].text.endswith("away for 0 s")


def unit_down(state: NotifyState, seconds: float = 9) -> tuple[NotifyState, list[str]]:
    """The state and the texts after systemd has given a unit up."""
    state, reported = notices.unit_down(state, "spark1", "sparkd-head.service", "78", "no recipe x", seconds)
    return state, [notice.text for notice in reported]


def test_a_unit_that_stays_down_is_reported_once_until_the_node_has_come_further() -> None:
    text = "sparkd-head.service ended with exit code 78 and stays down: no recipe x"
    state, texts = unit_down(NotifyState())
    assert texts == [text]
    assert unit_down(state)[1] == []
    state, _ = follow((1, PREFLIGHT), state=state)
    assert unit_down(state)[1] == []
    state, _ = follow((1, LOADING), state=state)
    assert unit_down(state)[1] == [text]


def test_after_a_unit_that_stayed_down_while_serving_the_next_service_says_how_long() -> None:
    state, _ = follow((0, SERVING))
    state, _ = unit_down(state, MINUTE)
    _, (back,) = follow((9, replace(SERVING, incarnation="next")), state=state)
    assert back.text.endswith("away for 8 min")
