"""Findings on a GPU under load, and the clocks that they are made from."""

from collections.abc import Iterable

from sparkd.agent.preflight.check import Finding
from sparkd.base.host.gpu import GpuClocks

GB10 = "NVIDIA GB10"
RESULT = '{"began": 10.0, "ended": 18.0, "tflops": 88.2, "copy_gbps": 214}'
"""The last line of the program's log."""


def clocks(mhz: int | None, watts: float | None, *held_by: str) -> GpuClocks:
    return GpuClocks(GB10, mhz, watts, 96, held_by)


def not_ok(findings: Iterable[Finding]) -> dict[str, str]:
    """The levels of the findings that are not ok, by what they are on."""
    levels = {finding.id.removeprefix("gpu-"): finding.verdict.level.value for finding in findings}
    return {subject: level for subject, level in levels.items() if level != "ok"}


def text(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{finding.id}: {finding.verdict.reason} -> {finding.verdict.hint}" for finding in findings)
