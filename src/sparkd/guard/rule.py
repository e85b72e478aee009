"""When memory is so short that the engine must go, and how soon to look again. Pure.

Plain numbers: the process that runs this is kept small, and dataclasses alone would add 2.3 MB to its 4.
"""

from __future__ import annotations

FASTEST_BYTES_PER_SECOND = 5 << 30
"""How fast memory may go: twice what was seen on GB10, where 7.4 GiB went in 3 s."""
SHORTEST_SECONDS = 0.02
"""At the fastest 100 MiB between two looks: a fifth of the floor's default. A look takes 10 to 20 µs."""
LONGEST_SECONDS = 1.0
PRESSED_PERCENT = 30.0
"""Of the last ten seconds in which all work stood still for memory: then twice the floor is too little."""


def short(available_bytes: int, full_avg10: float, floor_bytes: int) -> bool:
    """Whether the engine must go now."""
    pressed = full_avg10 >= PRESSED_PERCENT and available_bytes < 2 * floor_bytes
    return available_bytes < floor_bytes or pressed


def pause_seconds(available_bytes: int, floor_bytes: int) -> float:
    """Until the next look: memory that goes at the fastest reaches the floor in this time, and no sooner."""
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (available_bytes - floor_bytes) / FASTEST_BYTES_PER_SECOND))
