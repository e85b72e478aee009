"""Times: stamps in UTC, seconds between them, and durations as people write and read them."""

import re
from contextlib import suppress
from datetime import UTC, datetime

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import sanitize

DAY_SECONDS = 24 * 3600


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(stamp: str, now: datetime) -> float | None:
    """Seconds since a stamp, at least 0: another node's clock may be ahead. None where `stamp` is no time.

    A stamp without a zone is UTC.
    """
    with suppress(ValueError, OverflowError):
        then = datetime.fromisoformat(stamp)
        return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
    return None


def format_duration(seconds: float | None) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `4 d 3 h`; `?` for None."""
    if seconds is None:
        return "?"
    minutes, hours, days = (int(seconds) // unit for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def format_clock(seconds: float) -> str:
    """Date and time in UTC. `seconds`: since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def format_utc(stamp: str) -> str:
    """The stamp for people, to the minute."""
    return f"{sanitize(stamp[:16]).replace('T', ' ')} UTC"


def parse_time(flag: str, text: str, least: int, most: int) -> int:
    """Seconds of a duration such as 90s. Raises UsageError, also outside of `least` to `most` seconds."""
    match = re.fullmatch(r"([0-9]{1,7})(s|min|m|h|d)", text, re.ASCII)
    units = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
    seconds = int(match[1]) * units[match[2]] if match else -1
    if not least <= seconds <= most:
        raise UsageError(f"{flag} {sanitize(text, 40)}: needed is {least}s to {most // 3600}h, such as 90s, 30min, 2h")
    return seconds
