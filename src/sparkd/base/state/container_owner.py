"""Whose a container of sparkd's is, by its labels and the record of the rank.

A container's labels can't change. They name its rank, and the process that made it; the record names the process that
has the rank now. A container without a record, lost or of a version that had none, is judged by its labels.
"""

import os
from enum import Enum

from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.owner import NodeOwner
from sparkd.base.state.rank_record import KnownRank, RankStage


class Whose(Enum):
    """Who has a container of sparkd's."""

    OWNERS = "owners"
    """The process that owns the node has it, or has made it."""
    ORPHAN = "orphan"
    """No living process has it."""
    LEFT = "left"
    """Its agent has crashed, and the next one is to take it over. An agent that does not writes that to the record."""
    UNKNOWN = "unknown"


def whose(container: ContainerFacts, owner: NodeOwner | None, known: KnownRank) -> Whose:
    """Whose a container of sparkd's is. Only an orphan may be ended by others than its own agent."""
    is_owners = owner is not None and known.holder(container) == owner.invocation
    if known.stays and known.proves(container) and not is_owners:
        return Whose.LEFT
    if owner is None:
        return Whose.ORPHAN
    if not owner.invocation:
        return Whose.UNKNOWN  # who holds the lock is not known
    if not is_owners:
        # A rank may have passed to the owner, which the record alone says. What has no rank's label passes to nobody.
        return Whose.UNKNOWN if container.rank_id and known.error else Whose.ORPHAN
    if known.contradicts(container):
        return Whose.UNKNOWN
    return Whose.ORPHAN if owner.pid == os.getpid() and _is_over(container, known) else Whose.OWNERS


def _is_over(container: ContainerFacts, known: KnownRank) -> bool:
    """Whether it is an ended check of the image, or an ended rank, that its own process could not remove.

    The owner itself judges its container only after the end, never while it runs.
    """
    if container.running:
        return False
    return not container.rank_id or (known.record is not None and known.record.stage is RankStage.ENDING)
