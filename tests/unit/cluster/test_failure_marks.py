"""Which line of a log is marked as the first failure."""

from sparkd.agent.cluster.failure_marks import FailureMarker
from sparkd.base.host.journal import Line

OUT_OF_MEMORY = "engine| torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def mark_lines(*texts: str) -> list[tuple[bool, bool]]:
    """Of each line: whether it is a known error, and whether it is the first failure."""
    marker = FailureMarker()
    marks = [marker.mark(Line(1, "1", 6, text)) for text in texts]
    return [(mark.known_error is not None, mark.is_first_failure) for mark in marks]


def test_the_first_failure_since_service_is_marked() -> None:
    assert mark_lines(
        "agent.phase.changed phase=loading",
        OUT_OF_MEMORY,
        OUT_OF_MEMORY,
        "agent.run.failed code=13 reason='the engine ended'",
        "engine.readiness.reached seconds=90",
        "agent.run.failed code=14 reason='rank 1 is gone'",
    ) == [(False, False), (True, True), (True, False), (False, False), (False, False), (False, True)]


def test_events_as_json_are_marked_too() -> None:
    assert mark_lines(
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "engine.readiness.reached", "seconds": 90}',
        'engine| {"event": "agent.run.failed", "code": 14}',
        '{"event": "agent.run.failed", "code": 14}',
    ) == [(False, True), (False, False), (False, False), (False, False), (False, True)]


def test_a_client_can_end_no_failure_and_begin_no_event() -> None:
    assert mark_lines(
        OUT_OF_MEMORY, "engine| engine.readiness.reached x", "engine| agent.run.failed x", OUT_OF_MEMORY
    ) == [
        (True, True),
        (False, False),
        (False, False),
        (True, False),
    ]
