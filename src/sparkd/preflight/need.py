"""What the plan asks of the memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

DEFAULT_UTILIZATION = 0.92
"""vLLM's own default of --gpu-memory-utilization (vllm/config/cache.py, 0.32)."""


@dataclass(frozen=True)
class MemoryNeed:
    """What the recipe says its rank takes, and what must be left over beside it."""

    memory_bytes: int | None
    gpu_memory_utilization: float | None
    headroom_bytes: int

    def engine_bytes(self, total_bytes: int) -> int:
        """`total_bytes` is the memory that vLLM takes its share of."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        share = DEFAULT_UTILIZATION if self.gpu_memory_utilization is None else self.gpu_memory_utilization
        return ceil(total_bytes * share)

    def all_bytes(self, total_bytes: int) -> int:
        return self.engine_bytes(total_bytes) + self.headroom_bytes
