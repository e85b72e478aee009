"""The verdict on the figures of a GPU under load: its clocks, its compute, and who else loads it. Pure."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec import Struct

from sparkd.agent.preflight.check import Finding, Verdict, block, ok, unknown, warn
from sparkd.agent.preflight.checks.gpu import GB10, POWER_CYCLE
from sparkd.base.host.gpu import GpuClocks
from sparkd.base.lib import prepared
from sparkd.base.lib.errors import Action

AGAIN = "then again: sudo sparkd preflight --deep"


class Scale(NamedTuple):
    """Limits for a figure of a GB10: below `latched` its clock is latched, below `low` it is slow."""

    latched: float
    low: float
    owners: str
    """What owners measured."""


MHZ = Scale(1200, 2000, "2,200 to 2,400 MHz at 80 to 92 W")
TFLOPS = Scale(55, 70, "75 to 92 TFLOPS, and 36 with a latched clock")
"""Figures under products of bf16 matrices. A latched clock is 500 to 850 MHz (Blackwellboy/model-serving-minefield#55,
eugr/spark-vllm-docker#334), a limit of 2,100 MHz is somebody's choice (NVIDIA/open-gpu-kernel-modules#1358)."""


class Load(Struct, frozen=True):
    """The program's result."""

    began: float
    ended: float
    """Monotonic times of its products of matrices."""
    tflops: float
    copy_gbps: float
    """GB/s that its copies read and write together."""


def parse_load(log: str) -> Load | None:
    """The program's result, from its last line; None where that is no result, or no GPU can have such figures."""
    try:
        load = msgspec.json.decode(log.strip().rpartition("\n")[2], type=prepared(Load))
    except ValueError:
        return None
    return load if all(0 < figure < 1e6 for figure in (load.tflops, load.copy_gbps, load.ended - load.began)) else None


class Conditions(NamedTuple):
    """What may explain a low figure."""

    mhz: float | None
    held_by: list[str]
    """Reasons for a lower clock in at least half of the samples."""
    other_users: tuple[str, ...]
    """Processes that load the GPU, too."""


def judge(load: Load, name: str, samples: Sequence[GpuClocks], other_users: tuple[str, ...]) -> list[Finding]:
    """The findings on clocks, compute and other users of the GPU. Only a GB10's figures are compared. Pure.

    `samples`: clocks during the products; `other_users`: as in `Conditions`.
    """
    mhz = _median([clocks.sm_mhz for clocks in samples if clocks.sm_mhz is not None])
    watts = _median([clocks.power_watts for clocks in samples if clocks.power_watts is not None])
    reasons = Counter(reason for clocks in samples for reason in clocks.held_by)
    held_by = [reason for reason, count in reasons.items() if 2 * count >= len(samples)]
    conditions = Conditions(mhz, held_by, other_users)
    held_text = f", held down by {' and '.join(held_by)}" if held_by else ""
    clocks_text = f"{_format(mhz)} MHz and {_format(watts)} W under load{held_text}"
    compute_text = f"{load.tflops:,.1f} TFLOPS in bf16, {load.copy_gbps:,.0f} GB/s read and written by copies"
    facts = {"name": name, "sm_mhz": mhz, "power_watts": watts, "held_by": held_by, "others": list(other_users)}
    findings = list[Finding]()
    compared = (("gpu-clocks", clocks_text, mhz, MHZ), ("gpu-compute", compute_text, load.tflops, TFLOPS))
    for id_, figures_text, figure, scale in compared:
        verdict = ok(f"{figures_text}; compared with nothing: owners' figures are of {GB10}, and this is {name}")
        if GB10 in name:
            verdict = _compare(figures_text, figure, scale, conditions)
        findings.append(Finding(id_, verdict, facts | msgspec.structs.asdict(load), 0.0))
    users_verdict = warn(f"others load the GPU, and lower the figures: {', '.join(other_users)}", f"stop them, {AGAIN}")
    return [*findings, Finding("gpu-users", users_verdict if other_users else ok("nobody else loads the GPU"), {}, 0.0)]


def _median(figures: Sequence[float]) -> float | None:
    return median(figures) if figures else None


def _format(figure: float | None) -> str:
    return "unknown" if figure is None else f"{figure:,.0f}"


def _compare(figures_text: str, figure: float | None, scale: Scale, conditions: Conditions) -> Verdict:
    """The verdict on a figure. Another load or heat explains any low one, and a power cycle ends neither."""
    reason = f"{figures_text}; owners measured {scale.owners}"
    if figure is None:
        return unknown(reason, "the driver reports none: nvidia-smi; sudo dmesg | grep -e NVRM -e Xid")
    if figure >= scale.low:
        return ok(reason)
    if conditions.other_users:
        return warn(reason, f"stop what else loads the GPU, {AGAIN}")
    if any("heat" in held for held in conditions.held_by):
        return warn(reason, f"free the node's air vents, let it cool, {AGAIN}")
    if figure >= scale.latched:
        return warn(reason, f"is its clock limited (nvidia-smi -lgc)? Else {POWER_CYCLE}, {AGAIN}")
    if conditions.mhz is not None and conditions.mhz >= MHZ.low:
        return warn(reason, f"the clock is right: has the image a torch for this GPU? Else another image, {AGAIN}")
    return block(reason, f"{POWER_CYCLE}, {AGAIN}", needs_person=True, action=Action.POWER_CYCLE)
