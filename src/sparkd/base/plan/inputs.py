"""Inputs from which checks are built: the node's plan and settings, and the memory that the plan needs."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from sparkd.base.config import Settings
from sparkd.base.config.units import DropIn
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.lint.predicates import DEFAULT_SHARE

UNCHANGED_BYTES = 256 * MIB
"""Smaller changes are noise."""


class MemoryNeed(Struct, frozen=True):
    """The rank's memory according to the recipe, and the headroom beside it."""

    memory_bytes: int | None
    gpu_memory_utilization: float | None
    headroom_bytes: int
    is_known: bool = True
    """False without a plan: the figures then are those of an engine without flags."""

    def engine_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        """The rank's part of the machine's `total_bytes`. `gpu_bytes`: the memory of a GPU that has its own, else None.

        vLLM takes its share of the memory that the GPU uses.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        return 0 if gpu_bytes is not None else self.of_gpu(total_bytes)

    def of_gpu(self, bytes_: int) -> int:
        """The rank's share of `bytes_`, the memory that the GPU uses."""
        return ceil(bytes_ * (DEFAULT_SHARE if self.gpu_memory_utilization is None else self.gpu_memory_utilization))

    def all_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        return self.engine_bytes(total_bytes, gpu_bytes) + self.headroom_bytes


class MemorySample(Struct, frozen=True):
    """The least memory that was available since some last came back, and when that was."""

    uptime_seconds: float
    available_bytes: int

    def has_come_back(self, available_bytes: int) -> bool:
        """Whether more is available. Less says nothing of memory to come: somebody takes it."""
        return available_bytes - self.available_bytes >= UNCHANGED_BYTES

    def followed_by(self, later: MemorySample) -> MemorySample:
        """The sample to compare the next one with."""
        if self.has_come_back(later.available_bytes):
            return later
        return MemorySample(self.uptime_seconds, min(self.available_bytes, later.available_bytes))


class PlanNeededError(Exception):
    """A check is built from the plan, and there is none."""


class CheckInputs(Struct, frozen=True):
    made_plan: LaunchPlan | None
    """The plan; None where the configuration is wrong."""
    settings: Settings
    role: str = ""
    peers: tuple[str, ...] = ()
    drop_in: DropIn | None = None
    memory_baseline: MemorySample | None = None
    """The least memory that was available since some last came back; None for a single look, as in a dry run."""

    @property
    def plan(self) -> LaunchPlan:
        if self.made_plan is None:
            raise PlanNeededError
        return self.made_plan

    @property
    def uses_gpu(self) -> bool:
        """Whether the rank uses a GPU; true without a plan, as on a node that is to serve."""
        return self.made_plan is None or self.made_plan.container.gpus == "all"

    @property
    def gpus(self) -> int:
        """GPUs that the node must have: without a plan one, 0 where the plan uses none."""
        return (self.made_plan.gpus if self.made_plan else 1) if self.uses_gpu else 0

    @property
    def host_ipc(self) -> bool:
        return self.plan.container.ipc == "host"

    @property
    def need(self) -> MemoryNeed:
        headroom_bytes = round(self.settings.memory.headroom_gib * GIB)
        if self.made_plan is None:
            return MemoryNeed(None, None, headroom_bytes, is_known=False)
        return MemoryNeed(self.plan.memory_bytes, self.plan.gpu_memory_utilization, headroom_bytes)
