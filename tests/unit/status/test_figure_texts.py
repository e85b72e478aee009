"""Texts of a node's figures, and that no other node can show what is none."""

import math

import pytest
from msgspec.structs import replace
from tests.unit.node_reports import BIG, BUSY, GPU, LOADING, NOW, WILD

from sparkd.base.status.figure_texts import (
    activity_figures,
    bar,
    describe_time_left,
    gpu_text,
    memory_share,
    sparkline,
)
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport
from sparkd.base.status.model import MemoryReport


@pytest.mark.parametrize(
    ("activity", "figures"),
    [
        (BUSY, ["42.1", "310", "3", "1", "41%", "87%", "71%"]),
        (ActivityReport(0, 0, 0.0, 0.0, 0.0), ["0", "0", "0", "0", "0%"]),
        (WILD, ["0", "1,000,000,000", "1,000,000,000", "0", "0%", "0%", "0%"]),
    ],
)
def test_figures_of_the_activity_are_within_their_bounds(activity: ActivityReport, figures: list[str]) -> None:
    assert list(activity_figures(activity).values()) == figures


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        (GPU, "2405 MHz 61 W 71 °C 96 %"),
        (GpuReport("GB10", clock_mhz=600, temperature_celsius=40), "600 MHz 40 °C"),
        (GpuReport("GB10"), ""),
        (GpuReport("GB10", BIG, -5), "1000000000 MHz 0 W"),
    ],
)
def test_a_gpu_as_text(gpu: GpuReport, text: str) -> None:
    assert gpu_text(gpu) == text


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ((), " " * 10),
        ((0,), " " * 9 + "▁"),
        ((100,) * 7, " " * 8 + "██"),
        ((0, 100, 0, 0, 0, 0), " " * 9 + "█"),
        (tuple(range(100)), "▄▄▄▅▅▆▆▇▇▇"),
        ((BIG, -BIG), " " * 9 + "█"),
    ],
)
def test_a_sparkline_ends_with_the_newest_and_has_the_most_of_each_minute(samples: tuple[int, ...], line: str) -> None:
    assert sparkline(samples) == line


@pytest.mark.parametrize(
    ("total", "available", "filled"),
    [
        (100, 25, 8),
        (0, 0, 0),
        (-1, 5, 0),
        pytest.param(BIG, 1, 0, id="too large"),
        pytest.param(100, BIG, 0, id="more than all"),
        pytest.param(5, -BIG, 10, id="less than none"),
    ],
)
def test_a_bar_of_memory(total: int, available: int, filled: int) -> None:
    assert bar(memory_share(MemoryReport(total, available))) == "█" * filled + "░" * (10 - filled)


@pytest.mark.parametrize(
    ("engine", "left"),
    [
        (LOADING, "about 6 min left (last load)"),
        (replace(LOADING, expected_by="recipe"), "about 6 min left (recipe)"),
        (replace(LOADING, expected_seconds=60.0), "1 min over (last load)"),
        (replace(LOADING, expected_seconds=None), ""),
        (replace(LOADING, started=""), ""),
        (replace(LOADING, expected_seconds=math.inf), ""),
        (replace(LOADING, expected_seconds=1e300), ""),
        (replace(LOADING, expected_seconds=-1e300), ""),
    ],
)
def test_the_time_left_of_a_load_is_the_last_loads_less_what_passed(engine: EngineReport, left: str) -> None:
    assert describe_time_left(engine, NOW) == left
