"""How a fix went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Applied:
    """`stale`: what the fix was judged on is gone or changed, nothing was done. `failed`: `note` says why."""

    state: Literal["applied", "stale", "failed"]
    note: str = ""
