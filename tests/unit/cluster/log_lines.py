"""Lines of another node's journal, and pages of them."""

import time

from sparkd.agent.cluster.log_pages import LogPage
from sparkd.base.host.journal import Line, Lines


def line(at_us: int, text: str = "agent.phase.changed", place: str = "1") -> Line:
    return Line(at_us, place, 6, text)


def page(*lines: Line, node: str = "spark2", ahead_us: int = 0, cut: bool = False) -> LogPage:
    """The answer of a node whose clock is so far ahead."""
    return LogPage(node, time.time_ns() // 1000 + ahead_us, Lines(lines, cut))
