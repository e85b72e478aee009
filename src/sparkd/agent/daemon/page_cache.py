"""Bounds the page cache: loaded shards are released during a load, growth is dropped in service."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.readahead import restore_and_log
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.page_cache_release import PageCacheRelease
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.checks.free_memory import PageCache
from sparkd.agent.preflight.fixes import DROP_BY_HAND, Applied, DropPageCache
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.status.model import FindingReport

CREEP_SECONDS = 600.0
"""Pause between two looks while the engine serves: the cache grows over hours."""


class PageCacheWatch:
    """Every ten minutes, check whether page cache has grown into the memory that the GPU's driver needs; drop it while
    the engine is idle.

    It is dropped only where preflight may do that, too; else it is a finding of the report.
    """

    def __init__(self, agent: Agent, drop: Callable[[], Applied], clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._drop, self._clock = agent, drop, clock
        self._uses_gpu = agent.plan.container.gpus == "all"
        self._check = PageCache(MemoryNeed(0, None, round(agent.settings.memory.headroom_gib * GIB)))
        self._next_look_at = clock() + CREEP_SECONDS

    def tick(self, idle: bool) -> None:
        """Look in a thread, if it is time. `idle`: whether the engine is."""
        if self._uses_gpu and self._clock() >= self._next_look_at:
            self._next_look_at = self._clock() + CREEP_SECONDS
            may_drop = idle and DropPageCache.kind in self._agent.settings.preflight.allow_fixes
            self._agent.loop.start(partial(self._look, may_drop), "page cache", self._report)

    def _look(self, may_drop: bool) -> FindingReport | None:
        """The finding, after a drop if there may be one; None where nothing is wrong, or the GPU has its own memory.

        Raises OSError, ValueError where something can't be read.
        """
        gpu = self._agent.host.gpu()
        if gpu.error:
            raise OSError(gpu.error)
        if gpu.total_bytes is not None:
            return None
        verdict = self._check.run(self._agent.host)[1]
        if verdict.fixes and may_drop:
            applied = self._drop()
            if applied.state == "applied":
                self._agent.events.info("page_cache.growth.dropped", reason=verdict.reason, note=applied.note)
                verdict = self._check.run(self._agent.host)[1]
            else:
                self._agent.events.warning("page_cache.growth.failed", reason=applied.note)
        if not verdict.fixes:
            return None
        return FindingReport(PageCache.id, verdict.level.value, verdict.reason, DROP_BY_HAND)

    def _report(self, outcome: Outcome[FindingReport | None]) -> None:
        # What can't be read, and what no thread could look at, leaves the last finding as it is.
        with suppress(OSError, ValueError):
            self._agent.reporter.replace_finding(PageCache.id, outcome.result())


def start_load_memory_thread(agent: Agent, running: Running) -> None:
    """Start the thread that releases page cache, and compacts memory, until the engine serves.

    Where only the readahead was lowered, it restores that once the weights are loaded.
    """
    may_drop = agent.settings.memory.load_guard
    contiguous_gib = agent.settings.memory.contiguous_gib if agent.plan.container.gpus == "all" else 0
    if not may_drop and not contiguous_gib and not agent.settings.engine.load_readahead_kib:
        return
    release = PageCacheRelease(
        host=agent.host,
        model_path=agent.plan.model_path,
        pid=running.rank.pid,
        ended=running.rank.ended,
        progress=lambda: running.log.progress,
        # Once docker has gone away, the log may not show that the weights are loaded.
        is_over=lambda: running.ready or running.log.broken_off_at is not None,
        drop=agent.actions.drop_file_cache if may_drop else None,
        on_weights_loaded=partial(restore_and_log, agent, agent.actions.restore_readahead),
        contiguous=ContiguousMemory(
            agent.host, round(contiguous_gib * GIB), agent.actions.compact_memory, agent.events
        ),
        events=agent.events,
    )
    running.keep_release(release)
    agent.run_aside("page-cache", release.run)
