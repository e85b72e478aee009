"""All other nodes, each with its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkd.peers.reader import Reader, Source, nobody
from sparkd.peers.snapshot import Snapshot


class Peers:
    """From `start` to `stop`."""

    def __init__(
        self,
        sources: Sequence[Source],
        keys: Callable[[], tuple[bytes, ...]],
        bell: Callable[[], None],
        broken: Callable[[BaseException], None] = nobody,
    ) -> None:
        self._readers = tuple(Reader(source, keys, bell, broken) for source in sources)

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        for reader in self._readers:
            reader.stop()

    def snapshots(self) -> tuple[Snapshot, ...]:
        """In rank order."""
        return tuple(reader.snapshot for reader in self._readers)

    def values(self, rank: int) -> bytes:
        """The plan values of one node, unchecked. Raises Unanswered or UnsignedError."""
        (reader,) = (one for one in self._readers if one.snapshot.rank == rank)
        return reader.values()
