"""The fault table as it was measured, for people and programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .trial import Result

FOLDER = Path(__file__).parents[2] / "build"
SCHEMA = 1
HEAD = ("kind", "fault", "on", "both ranks stopped, s", "gap, s", "serving again, s", "engine alone, s", "limit, s", "")


def write(rows: Sequence[Result]) -> None:
    FOLDER.mkdir(exist_ok=True)
    table = {"schema": SCHEMA, "faults": [asdict(row) for row in rows]}
    (FOLDER / "faults.json").write_text(json.dumps(table, indent=1) + "\n")
    (FOLDER / "faults.md").write_text(as_markdown(rows))


def as_markdown(rows: Sequence[Result]) -> str:
    lines = [HEAD, tuple("---" for _ in HEAD), *(_cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: Result) -> tuple[str, ...]:
    measured = (
        row.stopped_seconds,
        row.gap_seconds,
        row.serving_seconds,
        row.engine_seconds,
        row.serving_limit_seconds,
    )
    seconds = ("" if number is None else f"{number:.1f}" for number in measured)
    return (row.kind, row.fault, row.side, *seconds, "FAILED" if row.complaints else "ok")
