"""What figures of a GPU under load mean, and what is no figure."""

import pytest
from msgspec.structs import replace
from tests.unit.measure.gpu_findings import GB10, RESULT, clocks, not_ok, text

from sparkd.base.host.gpu import GpuClocks
from sparkd.tools.measure.gpu_verdict import Load, judge, parse_load

H100 = "NVIDIA H100 80GB HBM3"
GOOD = Load(10.0, 18.0, 88.2, 214.0)
LATCHED, SLOW = dict.fromkeys(("clocks", "compute"), "block"), dict.fromkeys(("clocks", "compute"), "warn")


@pytest.mark.parametrize(
    ("tflops", "samples", "others", "expected", "words"),
    [
        pytest.param(91.6, [clocks(2281, 92.5)], (), {}, "2,281 MHz and 92 W", id="as owners measured"),
        pytest.param(75, [clocks(2400, 80)] * 3, (), {}, "75.0 TFLOPS", id="the least of them"),
        pytest.param(80, [clocks(2100, 78)], (), {}, "", id="limited to 2,100 MHz"),
        pytest.param(36.5, [clocks(799, 19.5)], (), LATCHED, "unplug it for 60 s", id="latched"),
        pytest.param(33, [clocks(702, 36)], (), LATCHED, "unplug it", id="latched, at more power"),
        pytest.param(40, [clocks(2400, 40)], (), {"compute": "warn"}, "another image", id="slow at a full clock"),
        pytest.param(70, [clocks(2000, 70)], (), {}, "", id="just not slow"),
        pytest.param(69.9, [clocks(1999, 70)], (), SLOW, "unplug", id="just slow"),
        pytest.param(55, [clocks(1200, 70)], (), SLOW, "unplug", id="just not latched"),
        pytest.param(54.9, [clocks(1199, 70)], (), LATCHED, "unplug", id="just latched"),
        pytest.param(62, [clocks(1700, 50)], (), SLOW, "nvidia-smi -lgc", id="slower"),
        pytest.param(
            30, [clocks(799, 19)], ("pid 7 (rival)",), {**SLOW, "users": "warn"}, "pid 7 (rival)", id="shared"
        ),
        pytest.param(
            50,
            [clocks(1100, 60, "heat, by its driver")] * 2 + [clocks(1150, 60)],
            (),
            SLOW,
            "let it cool",
            id="hot",
        ),
        pytest.param(
            40,
            [clocks(1100, 60, "heat, by its driver")] + [clocks(1100, 60)] * 2,
            (),
            LATCHED,
            "unplug",
            id="hot once",
        ),
        pytest.param(88, [], (), {"clocks": "unknown"}, "unknown MHz and unknown W", id="no samples"),
        pytest.param(88, [clocks(None, None)], (), {"clocks": "unknown"}, "nvidia-smi", id="no clock reported"),
        pytest.param(88, [clocks(2400, None)], (), {}, "2,400 MHz and unknown W", id="no power"),
    ],
)
def test_figures_of_a_gb10_are_compared_with_those_of_owners(
    tflops: float, samples: list[GpuClocks], others: tuple[str, ...], expected: dict[str, str], words: str
) -> None:
    findings = judge(replace(GOOD, tflops=tflops), GB10, samples, others)
    assert not_ok(findings) == expected
    assert words in text(findings)
    assert all(finding.verdict.hint for finding in findings if finding.id.removeprefix("gpu-") in expected)


def test_a_latched_clock_alone_needs_a_person() -> None:
    slow, latched = (judge(GOOD, GB10, [clocks(mhz, 20)], ()) for mhz in (1700, 799))
    assert [finding.verdict.needs_person for finding in slow] == [False, False, False]
    assert [finding.verdict.needs_person for finding in latched] == [True, False, False]


def test_a_median_ignores_the_moments_in_which_a_clock_rises() -> None:
    assert not_ok(judge(GOOD, GB10, [clocks(208, 5), clocks(2400, 88), clocks(2398, 89)], ())) == {}


def test_another_gpu_is_compared_with_nothing() -> None:
    """Measured on an H100."""
    findings = judge(replace(GOOD, tflops=679.4, copy_gbps=2969.5), H100, [clocks(1380, 698.0, "its power cap")], ())
    assert not_ok(findings) == {}
    assert "1,380 MHz and 698 W under load, held down by its power cap; compared with nothing" in text(findings)
    assert "679.4 TFLOPS in bf16, 2,970 GB/s" in text(findings)


def test_other_users_of_another_gpu_are_named() -> None:
    """Measured beside a process that multiplied smaller matrices."""
    findings = judge(replace(GOOD, tflops=385.9), H100, [clocks(1635, 687.5)], ("pid 560 (python3)",))
    assert not_ok(findings) == {"users": "warn"}
    assert "pid 560 (python3)" in text(findings)


def test_the_last_line_is_the_result() -> None:
    assert parse_load(f"a warning of torch\n{RESULT}\n") == GOOD


@pytest.mark.parametrize(
    "log",
    [
        "",
        "\n\n",
        "garbage",
        "[" * 5000,
        RESULT + "\nTraceback",
        *(RESULT.replace("88.2", rate) for rate in ("NaN", "Infinity", "1e308", "1e400", "9" * 5000, "0", "-1")),
        *(RESULT.replace("88.2", rate) for rate in ('"88.2"', "null")),
        RESULT.replace("214", "true"),
        RESULT.replace("18.0", "10.0"),
        RESULT.replace("18.0", "1e300"),
        "[10.0, 18.0, 88.2, 214]",
        "\x00\ud800",
    ],
)
def test_what_is_no_result_of_a_gpu_is_none(log: str) -> None:
    assert parse_load(log) is None
