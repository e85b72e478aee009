"""Texts of figures in a report, for tables, the live screen and the page. Pure.

A text is one line without control characters, and a figure is within its bounds, whatever another node has written.
"""

from datetime import datetime

from sparkd.base.lib.text import GIB, sanitize
from sparkd.base.lib.times import format_duration, seconds_since
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport
from sparkd.base.status.model import MemoryReport

NAME_LIMIT = 64
"""Characters of a name that others wrote."""
MOST = 1e9
"""Largest figure: larger ones are no measurement."""
MOST_BYTES = 1 << 60
SHADES = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 10


def shorten(text: str) -> str:
    return sanitize(text, NAME_LIMIT)


def progress_text(engine: EngineReport) -> str:
    share = bounded_share(engine.progress)
    return f"{shorten(engine.phase)}{f' {share:.0%}' if share is not None else ''}"


def load_seconds_left(engine: EngineReport, now: datetime) -> float | None:
    """Seconds to the first completion, by earlier loads; negative where this takes longer. None without a figure."""
    passed = seconds_since(engine.started, now)
    return None if passed is None or engine.expected_seconds is None else engine.expected_seconds - passed


def describe_time_left(engine: EngineReport, now: datetime) -> str:
    """`about 6 min left (recipe)`: until the first completion, and who says so; empty without a figure."""
    seconds_left = load_seconds_left(engine, now)
    if seconds_left is None or abs(seconds_left) > MOST:
        return ""
    source = "recipe" if engine.expected_by == "recipe" else "last load"
    return (
        f"about {format_duration(seconds_left)} left ({source})"
        if seconds_left >= 0
        else f"{format_duration(-seconds_left)} over ({source})"
    )


def activity_figures(activity: ActivityReport) -> dict[str, str]:
    """Texts by name: two rates, two counts of requests, then shares."""
    rates = {"tokens/s out": activity.output_tokens_per_second, "tokens/s in": activity.input_tokens_per_second}
    counts = {"running": activity.running, "waiting": activity.waiting}
    shares = {
        "KV cache used": activity.kv_cache_use,
        "prefix cache hits": activity.prefix_hit_rate,
        "drafts accepted": activity.draft_acceptance,
    }
    # A decimal is worth showing below 100 tokens/s: large models write some ten.
    texts = {title: f"{_limit(rate):,.{1 if 0 < rate < 100 else 0}f}" for title, rate in rates.items()}
    for state, count in counts.items():
        texts[f"{'request' if count == 1 else 'requests'} {state}"] = f"{_limit(count):,.0f}"
    known_shares = ((title, bounded_share(share)) for title, share in shares.items())
    return texts | {title: f"{share:.0%}" for title, share in known_shares if share is not None}


def gpu_text(gpu: GpuReport) -> str:
    figures = ((gpu.clock_mhz, "MHz"), (gpu.power_watts, "W"), (gpu.temperature_celsius, "°C"), (gpu.busy_percent, "%"))
    return " ".join(f"{_limit(figure):.0f} {unit}" for figure, unit in figures if figure is not None)


def _limit(figure: float) -> float:
    return min(max(0, figure), MOST)


def memory_text(memory: MemoryReport) -> str:
    return f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} GiB free"


def memory_share(memory: MemoryReport) -> float:
    """The share in use."""
    total = memory.total_bytes
    return 1 - min(max(0, memory.available_bytes), total) / total if 0 < total < MOST_BYTES else 0.0


def _gib(count: int) -> str:
    return f"{min(max(0, count), MOST_BYTES) / GIB:.1f}"  # what another node wrote may be too large for a float


def bounded_share(value: float | None) -> float | None:
    """The value within 0 to 1; NaN becomes 0."""
    return None if value is None else min(max(0.0, value), 1.0)


def bar(share: float) -> str:
    return "█" * (done := round(share * BAR_WIDTH)) + "░" * (BAR_WIDTH - done)


def sparkline(used_percent: tuple[int, ...]) -> str:
    """One line of the last samples, newest on the right. Each character shows the highest of six samples."""
    samples_each = 6
    ends = range(len(used_percent), 0, -samples_each)[:BAR_WIDTH]
    highest = (min(max(0, *used_percent[max(0, end - samples_each) : end]), 100) for end in reversed(ends))
    return "".join(SHADES[top * (len(SHADES) - 1) // 100] for top in highest).rjust(BAR_WIDTH)
