"""The spans of the last day in which a node loaded or served, by the launches of its history."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from sparkd.agent.status.page_day import Span, find_spans
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch
from sparkd.base.state.launch_history import End

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOUR = 3600.0


def stamp(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat()


def launch(began: float, load: float | None = None, ended: float | None = None) -> Launch:
    """A launch that began and ended so many seconds before NOW; `load`: seconds that its load took."""
    end = None if ended is None else End("e", at=stamp(ended))
    return Launch(f"l{began}", stamp(began), 0, "p", "r", Facts({}, {}, {}), load_seconds=load, end=end)


@pytest.mark.parametrize(
    ("launches", "spans"),
    [
        ([], []),
        ([launch(2 * HOUR, load=600)], [Span("loading", 7200, 6600), Span("serving", 6600, 0)]),
        ([launch(600)], [Span("loading", 600, 0)]),
        ([launch(600, ended=500)], [Span("loading", 600, 500)]),
        ([launch(30 * HOUR, 600, ended=HOUR)], [Span("serving", 24 * HOUR, HOUR)]),
        ([launch(50 * HOUR, 600, ended=40 * HOUR)], []),
        ([launch(5 * HOUR, load=HOUR), launch(HOUR)],
         [Span("loading", 5 * HOUR, 4 * HOUR), Span("serving", 4 * HOUR, HOUR), Span("loading", HOUR, 0)]),
        ([launch(-HOUR, load=600)], []),
        ([replace(launch(HOUR, load=600), at="x")], []),
        ([launch(HOUR, load=1e300)], [Span("loading", HOUR, 0)]),
    ],
)  # fmt: skip
def test_the_last_day_is_read_from_the_launches(launches: list[Launch], spans: list[Span]) -> None:
    assert list(find_spans(launches, NOW)) == spans
