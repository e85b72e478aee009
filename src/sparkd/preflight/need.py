"""What the plan asks of the memory."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

DEFAULT_UTILIZATION = 0.92
"""vLLM's own default of --gpu-memory-utilization (vllm/config/cache.py, 0.32)."""


class MemoryNeed(Struct, frozen=True):
    """What the recipe says its rank takes, and what must be left over beside it."""

    memory_bytes: int | None
    gpu_memory_utilization: float | None
    headroom_bytes: int

    def engine_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        """Of the machine's memory, in all `total_bytes`. `gpu_bytes`: what a GPU has of its own, else None.

        vLLM takes its share of the memory that the GPU uses.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        if gpu_bytes is not None:
            return 0
        share = DEFAULT_UTILIZATION if self.gpu_memory_utilization is None else self.gpu_memory_utilization
        return ceil(total_bytes * share)

    def all_bytes(self, total_bytes: int, gpu_bytes: int | None = None) -> int:
        return self.engine_bytes(total_bytes, gpu_bytes) + self.headroom_bytes
