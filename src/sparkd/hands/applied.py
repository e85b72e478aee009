"""How a fix went."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Applied(Struct, frozen=True):
    """`stale`: what the fix was judged on is gone or changed, nothing was done. `failed`: `note` says why."""

    state: Literal["applied", "stale", "failed"]
    note: str = ""
