"""All other nodes, each with its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkd.lib.event_loop import EventLoop
from sparkd.peers.reader import Reader, Source
from sparkd.peers.snapshot import Snapshot


class Peers:
    """From `start` until the loop is closed."""

    def __init__(
        self,
        sources: Sequence[Source],
        keys: Callable[[], tuple[bytes, ...]],
        bell: Callable[[], None],
    ) -> None:
        self._readers = tuple(Reader(source, keys, bell) for source in sources)

    def start(self, network: EventLoop) -> None:
        """One task for each node; what one dies of goes to the loop's `broken`."""
        for reader in self._readers:
            network.spawn(reader.run())

    def snapshots(self) -> tuple[Snapshot, ...]:
        """In rank order."""
        return tuple(reader.snapshot for reader in self._readers)

    async def values(self, rank: int) -> bytes:
        """The plan values of one node, unchecked. Raises HttpError or UnsignedError."""
        (reader,) = (one for one in self._readers if one.snapshot.rank == rank)
        return await reader.values()
