"""warm.json: the plans that were warmed on this node, with how many files of kernels its caches had then.

A cache that has fewer is cold: it was emptied. What a request has compiled since stays in it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sparkd.base.plan.agreement import LONGEST_TEXT
from sparkd.base.state.file import PUBLIC, StateFile

KEPT = 32


class Entry(Struct, frozen=True):
    agreement: Annotated[str, Meta(max_length=LONGEST_TEXT)]
    """Digest of the plan, the image, the weights and the script."""
    kernels: int | None = None
    """Files in the image's caches, by `caches.count_kernels`; None where it was not warmed yet."""
    begun: int = 0
    """Times in a row that the engine ended while it was warmed."""


class Warmed(Struct, frozen=True):
    plans: Annotated[tuple[Entry, ...], Meta(max_length=KEPT)] = ()
    """The newest first."""

    def find(self, agreement: str) -> Entry:
        return next((one for one in self.plans if one.agreement == agreement), Entry(agreement))

    def add(self, entry: Entry) -> Warmed:
        return Warmed((entry, *(one for one in self.plans if one.agreement != entry.agreement))[:KEPT])


FILE = StateFile("warm.json", Warmed, PUBLIC)
