"""Two causes that end a run, in each order and at three distances: the run has the first one's end.

Each cause is noticed by another thread or process, so two at once are a race: then the table has both. These races
remain: the guard looks at memory every 20 ms here; a rank's end, the other node's news and a signal wake the main loop
within a few milliseconds; whatever wakes it, a signal counts before a chosen plan, and that before the other node.
A stop that comes first is never overtaken, nor is a chosen plan once it is seen.
"""

from collections.abc import Iterator

import pytest
from tests.integration.causes import End, end_by_two
from tests.integration.side_by_side import Outcomes, outcomes

GAPS_SECONDS = (0.0, 0.05, 0.3)
TABLE = [
    ("guard", "rank", ("guard or rank", "guard", "guard")),
    ("guard", "peer", ("guard or peer", "guard", "guard")),
    ("guard", "stop", ("guard or stop", "guard", "guard")),
    ("guard", "switch", ("guard or switch", "guard", "guard")),
    ("rank", "guard", ("rank or guard", "rank", "rank")),
    ("rank", "peer", ("rank or peer", "rank", "rank")),
    ("rank", "stop", ("rank or stop", "rank", "rank")),
    ("rank", "switch", ("rank or switch", "rank", "rank")),
    ("peer", "guard", ("peer or guard", "peer", "peer")),
    ("peer", "rank", ("peer or rank", "peer", "peer")),
    ("peer", "stop", ("peer or stop", "peer", "peer")),
    ("peer", "switch", ("peer or switch", "peer", "peer")),
    ("stop", "guard", ("stop", "stop", "stop")),
    ("stop", "rank", ("stop", "stop", "stop")),
    ("stop", "peer", ("stop", "stop", "stop")),
    ("stop", "switch", ("stop", "stop", "stop")),
    ("switch", "guard", ("switch", "switch", "switch")),
    ("switch", "rank", ("switch", "switch", "switch")),
    ("switch", "peer", ("switch", "switch", "switch")),
    ("switch", "stop", ("switch", "switch", "switch")),
]
"""First and second cause, and whose end the run has, by the distance between them."""
ENDS = {
    "loading": {
        "guard": End(16, "memory-guard", "failed", ("16", "memory-guard", "loading")),
        "rank": End(13, "engine-error", "failed", ("13", "engine-error", "loading")),
        "peer": End(14, "peer-failed", "failed", ("14", "peer-failed", "loading")),
        "stop": End(0, "stop-requested", "stopped"),
        "switch": End(0, "switch", "stopped"),
    },
    "serving": {
        "guard": End(16, "memory-guard", "failed", ("16", "memory-guard", "serving")),
        "rank": End(13, "engine-ended", "failed", ("13", "engine-ended", "serving")),
        "peer": End(14, "peer-failed", "failed", ("14", "peer-failed", "serving")),
        "stop": End(0, "stop-requested", "stopped"),
        "switch": End(0, "switch", "stopped"),
    },
}
"""While it serves, the engine's own words prove no cause: a client may have sent them."""


def rows() -> Iterator[object]:
    """All of the table in both phases; each run of the integration tests takes a third, with every pair in it."""
    for phase_number, phase in enumerate(ENDS):
        for row_number, (first, second, _) in enumerate(TABLE):
            for gap_number, gap_seconds in enumerate(GAPS_SECONDS):
                often = (phase_number + row_number + gap_number) % len(GAPS_SECONDS) == 0
                name = f"{phase}-{first}-{second}-{gap_seconds * 1000:.0f}ms"
                marks = [] if often else [pytest.mark.whole]
                yield pytest.param(first, second, gap_seconds, phase, id=name, marks=marks)


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest) -> Iterator[Outcomes[End]]:
    with outcomes(request, end_by_two, at_once=12) as results:
        yield results


@pytest.mark.parametrize(("first", "second", "gap_seconds", "phase"), list(rows()))
def test_the_first_cause_is_the_end(
    first: str, second: str, gap_seconds: float, phase: str, ends: Outcomes[End], request: pytest.FixtureRequest
) -> None:
    winners = {(row[0], row[1]): row[2] for row in TABLE}[first, second][GAPS_SECONDS.index(gap_seconds)]
    assert ends.of(request) in [ENDS[phase][winner] for winner in winners.split(" or ")]
