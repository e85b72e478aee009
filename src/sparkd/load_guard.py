"""The load guard: the page cache of shards that are loaded is given back while the rest still load.

CPU and GPU of a DGX Spark share one memory. A load of 149 GB leaves as much page cache behind as there is room for, in
competition with the allocations that it is for. It ends before the engine profiles its memory: free memory that grows
meanwhile makes that fail.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from msgspec import Struct, field

from sparkd.engine.story import Story
from sparkd.host import Host, shards
from sparkd.host.shards import Shard
from sparkd.lib.log import Events

PACE_SECONDS = 1.0
LEAST_BYTES = 1 << 30
"""A model smaller than this is not worth a look."""
LOADING = ("building process groups", "loading weights")
"""Steps of the story. Not every rank's log says when its load begins; the first shard is mapped in the earlier one."""

GiveBack = Callable[[Shard, Callable[[], bool]], int]


class Watch(Struct, frozen=True):
    """Numbers of shards, in the order that they are loaded in."""

    used: frozenset[int] = frozenset()
    """At the last look."""
    returned: frozenset[int] = frozenset()
    """Finished, and not used again since: a draft model is loaded from the same shards a second time."""


def finished(watch: Watch, used: frozenset[int]) -> tuple[Watch, tuple[int, ...]]:
    """What the next look at the shards in use says: which are done with. Pure.

    Those that were in use, and those before one that is: a small shard comes and goes between two looks.
    """
    passed = watch.used | frozenset(range(max(used, default=0)))
    done = passed - used - watch.returned
    return Watch(used, (watch.returned | done) - used), tuple(sorted(done))


class Tally(Struct):
    shards: int = 0
    bytes: int = 0


class LoadGuard(Struct):
    """Runs in a thread of its own, from the launch until `over` or the rank's end.

    `loaded` is called when the weights are loaded, and at the end.
    """

    host: Host
    model_path: str
    pid: int
    """Of the container's first process, held by `pidfd`."""
    pidfd: int
    story: Callable[[], Story]
    over: Callable[[], bool]
    give_back: GiveBack | None
    """None: the page cache is left alone."""
    loaded: Callable[[], None]
    events: Events
    pace_seconds: float = PACE_SECONDS
    _watch: Watch = Watch()
    _shards: tuple[Shard, ...] = ()
    _tally: Tally = field(default_factory=Tally)

    def run(self) -> None:
        """Raises nothing: a load needs no guard to succeed."""
        rank = select.poll()
        rank.register(self.pidfd, select.POLLIN)
        loading = False
        try:
            self._shards = self._worth_it()
            while not self.over() and not rank.poll(self.pace_seconds * 1000):
                before, loading = loading, self._loading()
                if loading:
                    self._look()
                elif before:
                    self._tell()
                    self.loaded()
        except (OSError, ValueError) as error:
            self.events.warning("load.guard.ended", reason=str(error), hint="the load goes on without it")
        finally:
            os.close(self.pidfd)
            self._tell()
            self.loaded()

    def _loading(self) -> bool:
        return self.story().step in LOADING

    def _worth_it(self) -> tuple[Shard, ...]:
        if self.give_back is None:
            return ()
        found = shards.of_model(self.host.files, self.model_path)
        return found if sum(one.size_bytes for one in found) >= LEAST_BYTES else ()

    def _look(self) -> None:
        if not self._shards or self.give_back is None:
            return
        table = self.host.processes()
        rank = (*table.descendants(self.pid), table.get(self.pid))
        seen = shards.in_use(self.host.files, filter(None, rank), self._shards)
        if not seen.sure:
            return
        used = frozenset(number for number, one in enumerate(self._shards) if one.identity in seen.found)
        self._watch, done = finished(self._watch, used)
        if not done:
            return
        wanted = [self._shards[number] for number in done]
        elsewhere = shards.in_use(self.host.files, table, wanted).found
        for shard in wanted:
            if shard.identity not in elsewhere and self._loading():
                self._count(self.give_back(shard, self._loading))

    def _count(self, size_bytes: int) -> None:
        if size_bytes:
            self._tally.shards += 1
            self._tally.bytes += size_bytes

    def _tell(self) -> None:
        tally, self._tally = self._tally, Tally()
        if tally.shards:
            self.events.info("load.cache.returned", shards=tally.shards, of=len(self._shards), bytes=tally.bytes)
