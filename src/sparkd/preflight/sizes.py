"""Sizes as people read them."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20


def size(size_bytes: int) -> str:
    """`96.0 GiB`, or `512 MiB` below one GiB."""
    return f"{size_bytes / GIB:.1f} GiB" if abs(size_bytes) >= GIB else f"{round(size_bytes / MIB)} MiB"
