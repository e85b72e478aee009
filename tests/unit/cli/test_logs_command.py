"""`sparkd logs`: times that people write, and what is shown of a line."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from sparkd.base.host.journal import Line
from sparkd.base.lib.errors import UsageError
from sparkd.tools.cli.logs import parse_since, render_json, render_rows, report_trouble
from sparkd.tools.support.failure_marks import FailureMarker
from sparkd.tools.support.node_logs import Entry

NOW = datetime(2026, 11, 23, 15, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("2d", NOW - timedelta(days=2)),
        ("14:30", NOW.replace(hour=14, minute=30)),
        ("23:50", datetime(2026, 11, 22, 23, 50).astimezone()),
        ("2026-11-22T10:00Z", datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("2026-11-22", datetime(2026, 11, 22).astimezone()),
        ("2026-11-22T10:00", datetime(2026, 11, 22, 10).astimezone()),
        ("2026-11-22 10:00:30", datetime(2026, 11, 22, 10, 0, 30).astimezone()),
    ],
)
def test_times_that_people_write(text: str, expected: datetime) -> None:
    assert parse_since(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-5m", "10", "99999999d", "25:00", "2026-13-01", "1\x1b[2Jm"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_since(text, NOW)
    assert str(refused.value).isprintable()


ENTRIES = [
    Entry(1_764_000_000_123_456, "spark1", Line(1, "a", 6, "agent.phase.changed phase=loading")),
    Entry(1_764_000_001_000_000, "spark2", Line(1, "b", 3, "engine| CUDA out of memory")),
    Entry(1_764_000_002_000_000, "spark2", Line(1, "c", 3, "agent.run.failed code=13")),
]


def test_a_failure_has_its_meaning_below_it() -> None:
    rows = list(render_rows(ENTRIES, FailureMarker()))
    assert [(row[1], row[2].partition(":")[0], level) for row, level in rows] == [
        ("spark1", "agent.phase.changed phase=loading", ""),
        ("spark2", "engine| CUDA out of memory", "block"),
        ("", "^ first failure", "block"),
        ("spark2", "agent.run.failed code=13", "block"),
    ]
    assert "; do: " in rows[2][0][2]
    assert rows[0][0][0].endswith(".123")


@pytest.mark.parametrize(("node", "reason"), [("10.0.0.2", "sparkd: 10.0.0.2: refused\n"), ("", "sparkd: refused\n")])
def test_a_nodes_trouble_is_among_the_objects_too(node: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    report_trouble(node, "refused", as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"node": node, "trouble": "refused"}
    assert err == reason
    report_trouble(node, "", as_json=False)
    assert capsys.readouterr().out == ""


def test_json_has_one_object_a_line() -> None:
    lines = [json.loads(text) for text in render_json(ENTRIES, FailureMarker())]
    assert [(line["node"], line["level"], line["engine"], line["first_failure"]) for line in lines] == [
        ("spark1", "info", False, False),
        ("spark2", "error", True, True),
        ("spark2", "error", False, False),
    ]
    assert datetime.fromisoformat(lines[0]["at"]).timestamp() == 1_764_000_000.123456
    assert lines[1]["remedy"]
