"""Parts of the report about the engine and its GPU. data/metrics.toml has the metrics of each part of the report."""

from msgspec import Struct

COLD, WARMING, WARM = "cold", "warming", "warm"


class EngineReport(Struct, frozen=True):
    """The engine of this node's rank. `progress` is 0 to 1 of the current step, None where it is not counted."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None
    idle_seconds: int | None = None
    """In `loading`: seconds for which the load has not worked, None where it is not watched. In `degraded`, on a
    worker: a fixed number while its rank does nothing, though its head's requests wait; else None."""
    started: str = ""
    """Stamp of the container's start; empty before."""
    expected_seconds: float | None = None
    """Time from `started` to the first completion, by the plan's `last load` on this node or by the `recipe`."""
    expected_by: str = ""
    works: bool = False
    """Whether the load is watched, and works."""
    url: str = ""
    """URL of the API for clients, with /v1. Only a head that serves has it, as it has `model` and `keyed`."""
    model: str = ""
    """The model's name for clients."""
    keyed: bool = False
    """Whether requests need a key."""
    compilers: int = 0
    """Compilers of kernels among the rank's processes, running or stopped."""
    kernels_compiled: int = 0
    """Kernels compiled inside requests since the start. vLLM's monitor may also count those loaded from a cache."""
    warmth: str = ""
    """COLD, WARMING or WARM: whether its caches have the kernels of the plan's requests; empty where unknown. No enum:
    a node of another version may report a further one."""


class ActivityReport(Struct, frozen=True):
    """Requests of a head's engine, by its own counters. Shares are 0 to 1, None where unknown."""

    running: int
    waiting: int
    input_tokens_per_second: float
    output_tokens_per_second: float
    kv_cache_use: float
    prefix_hit_rate: float | None = None
    draft_acceptance: float | None = None
    first_token_seconds: float | None = None
    """Mean of the requests whose first token came in the last minute; vLLM's own metrics have all of them."""


class HealthReport(Struct, frozen=True):
    """How a head's engine answers the agent itself."""

    probe_seconds: float | None = None
    """Seconds that the last reading of health and counters took, to a tenth, so that noise changes no report."""
    canary_seconds: float | None = None
    """Seconds of the last canary, with or without a token. There are none while requests move."""
    canary_at: float | None = None
    canaries: int = 0
    canaries_failed: int = 0


class GpuReport(Struct, frozen=True):
    """The first GPU, at most half a minute ago. None: the driver does not report it."""

    name: str
    clock_mhz: int | None = None
    power_watts: int | None = None
    temperature_celsius: int | None = None
    busy_percent: int | None = None
