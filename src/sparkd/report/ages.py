"""How long ago a stamp of a report was."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_since(stamp: str, now: datetime) -> float | None:
    """None where `stamp` is none. Never negative: another node's clock may be ahead of this one's."""
    try:
        then = datetime.fromisoformat(stamp)
        # A stamp without a zone is UTC, as all of them are.
        seconds = (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds)


def words(seconds: float | None) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `4 d 3 h`; `?` for None."""
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not hours:
        return f"{minutes} min"
    if not days:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"
