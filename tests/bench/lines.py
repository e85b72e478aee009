"""Numbered lines: what a container writes, and what of it arrived, when, in which order. Pure."""

import re
from dataclasses import dataclass, field

_NUMBER = re.compile(rb" line (\d{8}) ")
TEXT = "(EngineCore pid=123) INFO 07-31 12:00:00 [loggers.py:123] line %08d of a log that no engine would write so fast"
"""As long as vLLM's own lines are: 104 letters."""


@dataclass
class Tally:
    """Fed with what came, in pieces as they came. Lines without a number (sparkd's own) are not counted."""

    received: int = 0
    out_of_order: int = 0
    """Lines that did not follow the one before: one for each gap, repetition or swap."""
    first_at: float = 0.0
    last_at: float = 0.0
    _next: int = 0
    _rest: bytes = field(default=b"")

    def feed(self, data: bytes, now: float) -> None:
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for number in _NUMBER.findall(whole):
            if int(number) != self._next:
                self.out_of_order += 1
            self._next = int(number) + 1
            self.received += 1
            self.first_at = self.first_at or now
            self.last_at = now

    @property
    def lines_per_second(self) -> float:
        """From the first to arrive to the last."""
        took = self.last_at - self.first_at
        return self.received / took if took > 0 else 0.0


def at_pace(count: int, per_second: int) -> str:
    """Program for busybox awk: so many lines, at that pace or, where it falls behind, as fast as it can."""
    # The kernel's uptime is the only clock in hundredths that busybox awk has.
    return f"""
    function clock() {{
        getline line < "/proc/uptime"
        close("/proc/uptime")
        split(line, word, " ")
        return word[1]
    }}
    BEGIN {{
        began = clock()
        while (made < {count}) {{
            due = (clock() - began) * {per_second}
            for (; made < due && made < {count}; made++) printf("{TEXT}\\n", made)
            fflush()
            system("usleep 20000")
        }}
    }}"""


def as_fast_as_it_can(count: int) -> str:
    return f"""BEGIN {{ for (made = 0; made < {count}; made++) printf("{TEXT}\\n", made) }}"""
