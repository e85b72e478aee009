"""A benchmark of one level, of the plan that the head's report names."""

from msgspec.structs import replace
from tests.unit.node_reports import HEAD_REPORT

from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LevelFigures, Spread

RATE = Spread(100, 95, 105)


def level(at_once: int = 4, **changes: object) -> LevelFigures:
    return replace(LevelFigures(at_once, "static", 3 * at_once, 0, RATE, None, None, None, None), **changes)


def benchmark(*levels: LevelFigures, **changes: object) -> Benchmark:
    made, plan = "2026-11-23T10:00:00.000+00:00", HEAD_REPORT.plan_digest
    return replace(Benchmark(made, "n", "tiny", "tiny", plan, "1", 128, 128, levels=levels), **changes)
