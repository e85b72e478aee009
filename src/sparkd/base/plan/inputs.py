"""Inputs from which checks are built: the node's plan and settings, and the memory that the plan needs."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from sparkd.base.config import Settings
from sparkd.base.config.units import DropIn
from sparkd.base.lib.text import GIB, MIB
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.vllm.lint.predicates import DEFAULT_SHARE

NOISE_BYTES = 256 * MIB
"""Smaller growth of the available memory is noise: it does not show that some was freed."""


class MemoryNeed(Struct, frozen=True):
    """The memory that the rank takes by its plan, and the headroom that is to be left beside it."""

    memory_bytes: int | None
    """What the rank takes, as the recipe gives it; None where it takes a share of the GPU's memory."""
    gpu_memory_utilization: float | None
    """That share, from 0 to 1; None for vLLM's default."""
    headroom_bytes: int
    is_known: bool = True
    """False without a plan: the figures then are those of an engine without flags."""

    def engine_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        """The rank's part of `total_bytes`, the machine's memory.

        `gpu_bytes`: the memory of a GPU that has its own, of which vLLM takes its share then; None where the GPU uses
        the machine's.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        return 0 if gpu_bytes is not None else self.gpu_share_bytes(total_bytes)

    def gpu_share_bytes(self, gpu_bytes: int) -> int:
        """The rank's share of `gpu_bytes`, all memory that the GPU can use: its own, or the machine's."""
        share = DEFAULT_SHARE if self.gpu_memory_utilization is None else self.gpu_memory_utilization
        return ceil(gpu_bytes * share)

    def all_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        """`engine_bytes` and the headroom: what must be available on the machine."""
        return self.engine_bytes(total_bytes, gpu_bytes) + self.headroom_bytes


class MemorySample(Struct, frozen=True):
    """The lowest available memory since the last time some was freed, with which later figures are compared.

    While memory is still being freed, as after the end of an engine, a check waits instead of judging a shortage.
    """

    uptime_seconds: float
    """The node's uptime when memory was last seen to have been freed; before that, at the first sample."""
    available_bytes: int

    def is_exceeded_by(self, available_bytes: int) -> bool:
        """Whether so much more is available now that memory must have been freed.

        Less does not show that none will be: somebody else may take memory meanwhile.
        """
        return available_bytes - self.available_bytes >= NOISE_BYTES

    def merge(self, later: MemorySample) -> MemorySample:
        """The sample with which figures after `later` are compared: `later` itself if memory was freed in between."""
        if self.is_exceeded_by(later.available_bytes):
            return later
        return MemorySample(self.uptime_seconds, min(self.available_bytes, later.available_bytes))


class PlanNeededError(Exception):
    """A check is built from the plan, and there is none."""


class CheckInputs(Struct, frozen=True):
    """Everything that a check may be built from."""

    plan_if_any: LaunchPlan | None
    """The node's plan; None where the configuration is wrong. Checks that need one read `plan` instead."""
    settings: Settings
    role: str = ""
    """The node's role; empty where the checks are of a plan alone, not of a node in a cluster."""
    peers: tuple[str, ...] = ()
    """Addresses of the other nodes, in rank order."""
    drop_in: DropIn | None = None
    """The drop-in of this role's systemd unit, as it should be by the settings."""
    memory_baseline: MemorySample | None = None
    """The least memory that was available since some last came back; None for a single look, as in a dry run."""
    tried: frozenset[tuple[object, ...]] = frozenset()
    """Identities of the fixes that were applied: what has survived one is judged otherwise."""

    @property
    def plan(self) -> LaunchPlan:
        """The node's plan. Raises PlanNeededError where there is none."""
        if self.plan_if_any is None:
            raise PlanNeededError
        return self.plan_if_any

    @property
    def uses_gpu(self) -> bool:
        """Whether the rank uses a GPU; true without a plan, as on a node that is to serve."""
        return self.plan_if_any is None or self.plan_if_any.container.gpus == "all"

    @property
    def gpus(self) -> int:
        """How many GPUs the node must have: 0 where the plan uses none, 1 without a plan."""
        if not self.uses_gpu:
            return 0
        return self.plan_if_any.gpus if self.plan_if_any else 1

    @property
    def host_ipc(self) -> bool:
        """Whether the rank shares /dev/shm with the host. Raises PlanNeededError."""
        return self.plan.container.ipc == "host"

    @property
    def need(self) -> MemoryNeed:
        """What the plan needs. Without a plan, `is_known` of it is false."""
        headroom_bytes = round(self.settings.memory.headroom_gib * GIB)
        if self.plan_if_any is None:
            return MemoryNeed(None, None, headroom_bytes, is_known=False)
        return MemoryNeed(self.plan.memory_bytes, self.plan.gpu_memory_utilization, headroom_bytes)
