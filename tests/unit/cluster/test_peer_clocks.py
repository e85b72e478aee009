"""The clocks of other nodes, by the dates of their answers."""

import pytest
from tests.unit.nodes import heard, node, reading, report

from sparkd.agent.cluster.peer_reader import clock_ahead

DATE = "Sun, 01 Nov 2026 08:00:00 GMT"
AT = 1793520000.0


@pytest.mark.parametrize(
    ("date", "now", "known", "ahead"),
    [
        pytest.param(DATE, AT + 0.5, None, 0.0, id="the same second"),
        pytest.param(DATE, AT - 3600, None, 3600.0, id="an hour ahead"),
        pytest.param(DATE, AT + 60, None, -60.0, id="a minute behind"),
        pytest.param(DATE, AT + 61.2, -60.0, -60.0, id="no real change"),
        pytest.param(DATE, AT + 70, -60.0, -70.0, id="a real change"),
        pytest.param("", AT, None, None, id="no date"),
        pytest.param("", AT, 3.0, 3.0, id="no date this time"),
        pytest.param("yesterday", AT, None, None, id="no date of HTTP"),
        pytest.param("Sun, 99 Nov 2026 08:00:00 GMT", AT, None, None, id="no day"),
        pytest.param("Sun, 01 Nov 99999999999999 08:00:00 GMT", AT, None, None, id="no year"),
    ],
)
def test_the_date_of_an_answer_gives_the_clock(date: str, now: float, known: float | None, ahead: float) -> None:
    assert clock_ahead(date, now, known) == ahead


def test_a_reader_of_another_nodes_report_compares_the_clocks() -> None:
    with node("127.0.0.2") as peer, reading("127.0.0.2", peer.port) as reader:
        peer.publish(report())
        heard(reader)
        ahead_seconds = reader.status.clock_ahead_seconds
    assert ahead_seconds is not None
    assert abs(ahead_seconds) <= 2
