"""How far another node's clock is from this one's, as the dates of its answers tell. Pure.

The date is not signed: whoever could forge it could make a warning appear, and nothing else.
"""

from __future__ import annotations

from email.utils import formatdate, parsedate_to_datetime

DATE_HEADER = "Date"
HALF_SECOND = 0.5
"""A date of HTTP is cut to whole seconds: on average it is half a second old."""
UNCHANGED_SECONDS = 2.0
"""Less than this is the way of the answer, and no news."""


def stamp(now: float) -> str:
    """`now`: seconds since 1970."""
    return formatdate(now, usegmt=True)


def ahead(date: str, now: float, known: float | None) -> float | None:
    """Whole seconds that the other clock is ahead; `known` where that has not really changed, or there is no date."""
    try:
        said = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return known
    found = float(round(said + HALF_SECOND - now))
    return known if known is not None and abs(found - known) < UNCHANGED_SECONDS else found
