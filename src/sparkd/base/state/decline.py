"""Whether a series of figures has become worse than it was, and how that is shown to people."""

from collections.abc import Sequence
from statistics import median

from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_utc
from sparkd.base.state.facts import Facts, excerpt_values, find_differences, group_files
from sparkd.base.state.history import Launch

FEWEST, MOST_EARLIER = 3, 10
"""Earlier values that show what is usual: with fewer there is no judgement, and of more the last ones count."""
MIN_DEVIATIONS, MIN_DECLINE_SHARE = 3.0, 0.1
"""A decline is more than three standard deviations, estimated by the median deviation, and a tenth of the median."""
DEVIATIONS = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""
MOST_CHANGES, NAME_LIMIT = 3, 60
"""Changes that one line names, and characters of each name."""


def find_decline(values: Sequence[float], *, more_is_better: bool) -> int | None:
    """First index from which on all values, oldest first, are a decline against those before it; None without one."""
    sign = 1 if more_is_better else -1
    for start in range(FEWEST, len(values)):
        earlier = values[max(0, start - MOST_EARLIER) : start]
        usual = median_before(values, start)
        deviation = DEVIATIONS * median(abs(value - usual) for value in earlier)
        # A value no worse than the worst earlier one is no decline: the first load after a boot is slow.
        worst = min(sign * value for value in earlier)
        limit = min(worst, sign * usual - max(MIN_DEVIATIONS * deviation, MIN_DECLINE_SHARE * usual))
        if all(sign * value < limit for value in values[start:]):
            return start
    return None


def median_before(values: Sequence[float], start: int) -> float:
    """The median with which the values from `start` on are compared."""
    return median(values[max(0, start - MOST_EARLIER) : start])


def describe_change(earlier: Facts, current: Facts) -> str:
    """Known differences between two launches in one line, the likeliest cause first."""
    changes = group_files(find_differences(earlier, current))
    if not changes:
        return "nothing that sparkd knows of has changed"
    named_changes = changes[:MOST_CHANGES]
    texts = (f"{sanitize(change.name, NAME_LIMIT)} {' -> '.join(excerpt_values(change))}" for change in named_changes)
    more = f", and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
    return f"changed: {', '.join(texts)}{more}"


def describe_slower_load(launches: Sequence[Launch]) -> str:
    """A warning where loads have become slower, else empty. `launches`: of one recipe and rank, oldest first."""
    loads = [(launch, launch.load_seconds) for launch in launches if launch.load_seconds is not None]
    all_seconds = [seconds for _, seconds in loads]
    start = find_decline(all_seconds, more_is_better=False)
    if start is None:
        return ""
    (before_decline, _), (first_slow, _), (newest, seconds) = loads[start - 1], loads[start], loads[-1]
    return (
        f"loads are slower since {format_utc(first_slow.at)}: {seconds:.0f} s, "
        f"{median_before(all_seconds, start):.0f} s before; {describe_change(before_decline.facts, newest.facts)}"
    )
