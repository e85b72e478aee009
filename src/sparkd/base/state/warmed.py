"""warm.json: whose kernels this node's caches have, as by the number of their files after the last warming.

A cache that was emptied, and one that has grown since by a request of a client's, has another number: it is cold.
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
    kernels: int
    """Files in the image's caches: `caches.count_kernels`."""


class Warmed(Struct, frozen=True):
    plans: Annotated[tuple[Entry, ...], Meta(max_length=KEPT)] = ()
    """The newest first."""

    def add(self, entry: Entry) -> Warmed:
        return Warmed((entry, *(one for one in self.plans if one.agreement != entry.agreement))[:KEPT])


FILE = StateFile("warm.json", Warmed, PUBLIC)
