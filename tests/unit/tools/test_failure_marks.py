"""Which line of a log is marked as the first failure."""

from sparkd.base.host.journal import Line
from sparkd.tools.support.failure_marks import FailureMarker

OUT_OF_MEMORY = "engine| torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def first_failures(*texts: str) -> list[int]:
    """Places of the lines that are marked as the first failure."""
    marker = FailureMarker()
    marks = [marker.mark(Line(1, "1", 6, text)) for text in texts]
    return [place for place, mark in enumerate(marks) if mark.is_first_failure]


def test_the_first_failure_since_service_is_marked() -> None:
    assert first_failures(
        "agent.phase.changed phase=loading",
        OUT_OF_MEMORY,
        OUT_OF_MEMORY,
        "agent.run.failed code=13 reason='the engine ended'",
        "engine.readiness.reached seconds=90",
        "agent.run.failed code=14 reason='rank 1 is gone'",
    ) == [1, 5]


def test_events_as_json_are_marked_too() -> None:
    assert first_failures(
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "agent.run.failed", "code": 13}',
        '{"event": "engine.readiness.reached", "seconds": 90}',
        'engine| {"event": "agent.run.failed", "code": 14}',
        '{"event": "agent.run.failed", "code": 14}',
    ) == [0, 4]


def test_a_client_can_end_no_failure_and_begin_no_event() -> None:
    lines = "engine| engine.readiness.reached x", "engine| agent.run.failed x"
    assert first_failures(OUT_OF_MEMORY, *lines, OUT_OF_MEMORY) == [0]
    assert first_failures(*lines) == []


def test_an_error_that_is_known_is_named_also_where_it_is_not_the_first() -> None:
    marker = FailureMarker()
    for _ in range(2):
        assert marker.mark(Line(1, "1", 6, OUT_OF_MEMORY)).known_error is not None
    assert marker.mark(Line(1, "1", 6, "agent.run.failed code=13")).known_error is None
