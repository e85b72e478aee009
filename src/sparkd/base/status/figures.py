"""What the report has of the engine and its GPU, and which metrics Prometheus has of a part of the report."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar

from msgspec import Struct


class Metric(Struct, frozen=True):
    """A field's metric: `sparkd_` and its name. A field that is None has no sample."""

    field: str
    name: str
    documentation: str
    """The line HELP."""
    counter: bool = False
    scale: int | Fraction = 1
    """How many of the metric's unit make one of the field's."""
    states: tuple[str, ...] = ()
    """Values of a text: a series for each, labelled `state`, 1 for the current one."""


class Figures(Struct, frozen=True):
    """A part of the report that declares metrics, in the order of the page."""

    metrics: ClassVar[tuple[Metric, ...]]


class EngineReport(Figures, frozen=True):
    """The rank on this node. `progress` is 0 to 1 of the current step, None where it is not counted."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None
    idle_seconds: int | None = None
    """Seconds without work: of a load, or of a worker's rank while its head's requests wait. None while it works, and
    where it is not watched."""
    started: str = ""
    """When its container was started; empty before."""
    expected_seconds: float | None = None
    """Time from `started` to the first completion, by the plan's `last load` on this node or by the `recipe`."""
    expected_by: str = ""
    works: bool = False
    """A load that is watched and works."""
    url: str = ""
    """Where clients reach the API, with /v1: of a head that serves, as are `model` and `keyed`."""
    model: str = ""
    """Its name for clients."""
    keyed: bool = False
    """Whether requests need a key."""
    compilers: int = 0
    """Compilers of kernels below the rank: they run or are held back."""
    kernels_compiled: int = 0
    """Kernels compiled inside requests since the start. vLLM's monitor may also count those loaded from a cache."""
    warmth: str = ""
    """cold, warming or warm: whether its caches have the kernels of the plan's requests; empty where unknown."""
    metrics = (
        Metric("progress", "engine_progress_ratio", "Progress of the step of the load, 0 to 1."),
        Metric(
            "expected_seconds",
            "engine_expected_load_seconds",
            "Duration from the container's start to the first completion, by earlier loads or the recipe.",
        ),
        Metric("kv_cache_tokens", "kv_cache_tokens", "Size of the KV cache."),
        Metric("compilers", "engine_compilers", "Compilers of kernels that run below the rank, or are held back."),
        Metric(
            "kernels_compiled",
            "engine_kernels_compiled",
            "Kernels compiled inside requests since the engine's start, or loaded for the first time, by vLLM's log.",
            counter=True,
        ),
    )


class ActivityReport(Figures, frozen=True):
    """What a head's engine does with its requests, by its own counters. Shares are 0 to 1, None where unknown."""

    running: int
    waiting: int
    input_tokens_per_second: float
    output_tokens_per_second: float
    kv_cache_use: float
    prefix_hit_rate: float | None = None
    draft_acceptance: float | None = None
    first_token_seconds: float | None = None
    """Mean of the requests whose first token came in the last minute; vLLM's own metrics have all of them."""
    metrics = (
        Metric("running", "requests_running", "Requests that the engine works on."),
        Metric("waiting", "requests_waiting", "Requests in the engine's queue."),
        Metric("input_tokens_per_second", "input_tokens_per_second", "Prompt tokens a second."),
        Metric("output_tokens_per_second", "output_tokens_per_second", "Generated tokens a second."),
        Metric("kv_cache_use", "kv_cache_used_ratio", "Share of the KV cache in use, 0 to 1."),
        Metric(
            "prefix_hit_rate", "prefix_cache_hit_ratio", "Share of prompt tokens from the prefix cache, in ten minutes."
        ),
        Metric("draft_acceptance", "draft_acceptance_ratio", "Share of speculated tokens accepted, in ten minutes."),
    )


class HealthReport(Figures, frozen=True):
    """How a head's engine answers the agent itself."""

    probe_seconds: float | None = None
    """Seconds of the last look at its health and counters, to a tenth, so that a report does not change for nothing."""
    canary_seconds: float | None = None
    """Seconds of the last canary, with or without a token. There are none while requests move."""
    canary_at: float | None = None
    canaries: int = 0
    canaries_failed: int = 0
    metrics = (
        Metric("probe_seconds", "probe_seconds", "Duration of the last probe of the engine's health and counters."),
        Metric("canary_seconds", "canary_seconds", "Duration of the last canary request, sent while no request moves."),
        Metric("canary_at", "canary_timestamp_seconds", "When the last canary was answered or given up, since 1970."),
        Metric(
            "canaries",
            "canaries",
            "Canary requests, each for one token, by this agent to the engine that serves.",
            counter=True,
        ),
        Metric("canaries_failed", "canary_failures", "Canary requests that returned no token.", counter=True),
    )


class GpuReport(Figures, frozen=True):
    """The first GPU, at most half a minute ago. None: the driver does not report it."""

    name: str
    clock_mhz: int | None = None
    power_watts: int | None = None
    temperature_celsius: int | None = None
    busy_percent: int | None = None
    metrics = (
        Metric("clock_mhz", "gpu_clock_hertz", "Clock of the first GPU's processors.", scale=10**6),
        Metric("power_watts", "gpu_power_watts", "Power that the first GPU takes."),
        Metric("temperature_celsius", "gpu_temperature_celsius", "Temperature of the first GPU."),
        Metric(
            "busy_percent", "gpu_busy_ratio", "Share of time that the first GPU works, 0 to 1.", scale=Fraction(1, 100)
        ),
    )
