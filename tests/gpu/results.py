"""What was measured, for programs and people: build/gpu/results.json and a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

SCHEMA = 1


@dataclass(frozen=True)
class Row:
    name: str
    measured: str
    good: bool
    figures: dict[str, float] = field(default_factory=dict)
    """By name, with the unit in it."""


@dataclass
class Results:
    """Kept on disk after each row: a run may be cut off."""

    folder: Path
    machine: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def add(self, name: str, measured: str, good: bool, **figures: float) -> None:
        self.rows.append(Row(name, measured, good, figures))
        print(f"{'ok    ' if good else 'FAILED'} {name}: {measured}", flush=True)
        self.write()

    def write(self) -> None:
        table = {"schema": SCHEMA, "machine": self.machine, "rows": [asdict(row) for row in self.rows]}
        (self.folder / "results.json").write_text(json.dumps(table, indent=1) + "\n")
        lines = [("row", "measured", ""), ("---", "---", "---")]
        lines += [(row.name, row.measured.replace("|", "\\|"), "ok" if row.good else "FAILED") for row in self.rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        about = "".join(f"{name}: {value}\n" for name, value in self.machine.items())
        (self.folder / "results.md").write_text(f"{about}\n{text}")
