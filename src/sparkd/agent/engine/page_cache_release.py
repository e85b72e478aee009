"""Drops the page cache of loaded shards while the rest still load, and has memory compacted until the engine serves.

CPU and GPU of a DGX Spark share one memory. A load of 149 GB fills free memory with page cache, which competes with the
allocations of the load. The release ends before the engine profiles memory: profiling fails if free memory grows.

The GPU's driver needs free memory in large blocks: `contiguous_memory.py` compacts it, once what is cached of finished
shards has been dropped again.
"""

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.host import Host, shm
from sparkd.base.host.shm import File
from sparkd.base.host.weights import list_shards
from sparkd.base.lib.log import Events

PACE_SECONDS = 1.0
"""Pause between two scans."""
LEAST_BYTES = 1 << 30
"""Smaller models are left alone."""
LOADING = ("building process groups", "loading weights")
"""Steps of the load that read shards. Not every rank logs the second; the first shard is mapped in the first."""


class ShardUse(Struct, frozen=True):
    """State between two scans, in indexes of shards, which are in load order."""

    used: frozenset[int] = frozenset()
    """Shards in use at the last scan."""
    finished: frozenset[int] = frozenset()
    """Finished shards that are not in use again: a draft model loads the same shards a second time."""


def find_finished(last_use: ShardUse, used: frozenset[int]) -> tuple[ShardUse, tuple[int, ...]]:
    """The next state, and the newly finished shards. Pure.

    A shard is finished when it is no longer used, or when a later one is: a small shard may load between two scans.
    """
    started = last_use.used | frozenset(range(max(used, default=0)))
    newly_finished = started - used - last_use.finished
    return ShardUse(used, (last_use.finished | newly_finished) - used), tuple(sorted(newly_finished))


class PageCacheRelease(Struct):
    """The release for one rank. `run` is for a thread of its own, from the launch until `is_over` or the rank's end."""

    host: Host
    model_path: str
    pid: int
    """The container's first process."""
    ended: threading.Event
    """Set once that process has ended."""
    progress: Callable[[], LoadProgress]
    is_over: Callable[[], bool]
    drop: Callable[[File, Callable[[], bool]], int] | None
    """drop(shard, whether to continue) returns the bytes that it dropped. None: drop nothing."""
    on_weights_loaded: Callable[[], None]
    """Called once the weights are loaded, and once more at the end."""
    contiguous: ContiguousMemory
    events: Events
    pace_seconds: float = PACE_SECONDS
    released_bytes: int = 0
    """Bytes dropped in all. Any thread may read it."""
    _use: ShardUse = ShardUse()
    _shards: tuple[File, ...] = ()
    _dropped_shards: int = 0
    _dropped_bytes: int = 0

    def run(self) -> None:
        """Drop shards, and compact memory, at every pace. Logs what fails, since a load works without it."""
        is_loading = False
        try:
            if self.drop is not None:
                shards = list_shards(self.host.files, self.model_path)
                self._shards = shards if sum(shard.size_bytes for shard in shards) >= LEAST_BYTES else ()
            while not self.is_over() and not self.ended.wait(self.pace_seconds):
                was_loading, is_loading = is_loading, self._is_loading()
                if is_loading:
                    self._release_finished()
                elif was_loading:
                    self._end_weights()
                self.contiguous.keep(self._drop_again)
        except (OSError, ValueError) as error:
            self.events.warning("page_cache.release.failed", reason=str(error), hint="the load continues without it")
        finally:
            self._end_weights()

    def _is_loading(self) -> bool:
        return self.progress().step in LOADING

    def _release_finished(self) -> None:
        if not self._shards or self.drop is None:
            return
        table = self.host.processes()
        rank = (*table.descendants(self.pid), table.get(self.pid))
        uses = shm.find_uses(self.host.files, filter(None, rank), self._shards)
        if uses.unreadable_pids:
            return
        used = frozenset(number for number, shard in enumerate(self._shards) if shard.identity in uses.identities)
        self._use, newly_finished = find_finished(self._use, used)
        self._drop(newly_finished)

    def _drop_again(self) -> None:
        """Drop what is still cached of finished shards: another program used it then, or has read it since."""
        if self._is_loading():
            self._drop(sorted(self._use.finished))
            self._report()

    def _drop(self, numbers: Sequence[int]) -> None:
        if not numbers or self.drop is None:
            return
        shards = [self._shards[number] for number in numbers]
        in_use = shm.find_uses(self.host.files, self.host.processes(), shards).identities
        for shard in shards:
            if shard.identity not in in_use and self._is_loading():
                dropped_bytes = self.drop(shard, self._is_loading)
                self._dropped_shards += dropped_bytes > 0
                self._dropped_bytes += dropped_bytes
                self.released_bytes += dropped_bytes

    def _end_weights(self) -> None:
        """Report that the weights are loaded, or the load has ended. May run twice."""
        self._report()
        self.on_weights_loaded()

    def _report(self) -> None:
        count, dropped_bytes = self._dropped_shards, self._dropped_bytes
        self._dropped_shards = self._dropped_bytes = 0
        if count:
            self.events.info("page_cache.shards.dropped", shards=count, of=len(self._shards), bytes=dropped_bytes)
