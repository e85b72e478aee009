"""What the report has of the engine and its GPU."""

from __future__ import annotations

from msgspec import Struct


class EngineReport(Struct, frozen=True):
    """The rank on this node. `progress` is 0 to 1 of the current step, None where it is not counted."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None
    idle_seconds: int | None = None
    """How long a load has shown no work; None while it does, and where it is not watched."""
    started: str = ""
    """When its container was started; empty before."""
    expected_seconds: float | None = None
    """From `started` to the first completion, by the plan's `last load` on this node or by the `recipe`."""
    expected_by: str = ""


class ActivityReport(Struct, frozen=True):
    """What a head's engine does with its requests, by its own counters. Shares are 0 to 1, None where unknown."""

    running: int
    waiting: int
    input_tokens_per_second: float
    output_tokens_per_second: float
    kv_cache_use: float
    prefix_hit_rate: float | None = None
    """Of the prompts' tokens of the last ten minutes."""
    draft_acceptance: float | None = None
    """Of the speculated tokens of the last ten minutes."""


class HealthReport(Struct, frozen=True):
    """How a head's engine answers the agent itself."""

    probe_seconds: float | None = None
    """Of the last look at its health and counters, to a tenth, so that a report does not change for nothing."""
    canary_seconds: float | None = None
    """Of the last canary, with or without a token. There are none while requests move."""
    canary_at: float | None = None
    """When it ended, since 1970."""
    canaries: int = 0
    canaries_failed: int = 0


class GpuReport(Struct, frozen=True):
    """The first GPU, at most half a minute ago. None: the driver does not report it."""

    name: str
    clock_mhz: int | None = None
    power_watts: int | None = None
    temperature_celsius: int | None = None
    busy_percent: int | None = None
