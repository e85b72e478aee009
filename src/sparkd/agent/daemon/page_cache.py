"""Bounds the page cache: less readahead before a load, loaded shards released during it, growth dropped in service."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sparkd.agent.actions.page_cache import ReadaheadChange
from sparkd.agent.daemon.context import Agent
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.page_cache_release import PageCacheRelease
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.check import Verdict
from sparkd.agent.preflight.checks.free_memory import PageCache
from sparkd.agent.preflight.fixes import Applied, DropPageCache
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.status.model import FindingReport

RESTORE_SECONDS = 1.0
"""Limit for one write to sysfs."""
CREEP_SECONDS = 600.0
"""Pause between two looks while the engine serves: the cache grows over hours."""


def page_cache_watch(
    agent: Agent, drop: Callable[[], Applied], clock: Callable[[], float] = time.monotonic
) -> Callable[[bool], None]:
    """A function that looks, while the engine serves, whether free memory for the GPU's driver becomes page cache.

    It is called with whether the engine is idle: then the cache is dropped, where preflight may do that.
    """
    settings, unified = agent.settings, agent.plan.container.gpus == "all"
    check, look_at = PageCache(MemoryNeed(0, None, round(settings.memory.headroom_gib * GIB))), clock() + CREEP_SECONDS

    def look(may_drop: bool) -> Verdict | None:
        """Look once, in a thread. None where the GPU has memory of its own, or something can't be read."""
        with suppress(OSError, ValueError):
            if (gpu := agent.host.gpu()).error or gpu.total_bytes is not None:
                return None
            verdict = check.run(agent.host)[1]
            if not (verdict.fixes and may_drop):
                return verdict
            if (applied := drop()).state != "applied":
                agent.events.warning("page_cache.growth.failed", reason=applied.note)
                return verdict
            agent.events.info("page_cache.growth.dropped", reason=verdict.reason, note=applied.note)
            return check.run(agent.host)[1]
        return None

    def report(outcome: Outcome[Verdict | None]) -> None:
        with suppress(BlockingIOError):  # no thread for it
            verdict = outcome.result()
            finding = None
            if verdict is not None and verdict.fixes:
                hint = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"
                finding = FindingReport(PageCache.id, verdict.level.value, verdict.reason, hint)
            agent.reporter.replace_finding(PageCache.id, finding)

    def watch(idle: bool) -> None:
        nonlocal look_at
        if unified and clock() >= look_at:
            look_at = clock() + CREEP_SECONDS
            may_drop = idle and DropPageCache.kind in settings.preflight.allow_fixes
            agent.loop.start(partial(look, may_drop), "page cache", report)

    return watch


def lower_readahead(agent: Agent) -> None:
    """Lower the readahead before the container starts: a file gets the setting when it is opened."""
    kib = agent.settings.engine.load_readahead_kib
    if not kib:
        return
    try:
        change = agent.actions.lower_readahead(agent.plan.model_path, kib)
    except (OSError, ValueError) as error:
        hint = "sudo sparkd units install; file systems without a disk of their own (tmpfs, btrfs) have none"
        agent.events.warning("page_cache.readahead.failed", reason=str(error), hint=hint)
        return
    _log_readahead(agent, change)


def begin_restore(agent: Agent) -> Outcome[None]:
    """Undo `lower_readahead`, also that of a killed agent, in a thread: sysfs may hang with its disk."""

    def report(outcome: Outcome[None]) -> None:
        try:
            outcome.result()
        except OSError as error:  # no thread could be started: the next start restores it
            _log_failure(agent, error)

    return agent.loop.start(partial(_restore, agent), then=report)


def restore_readahead(agent: Agent) -> None:
    """Undo `lower_readahead`, and wait RESTORE_SECONDS at most."""
    agent.loop.wait_until(begin_restore(agent).done, RESTORE_SECONDS, shielded=True)


def _restore(agent: Agent) -> None:
    """Undo `lower_readahead`. Runs in a thread."""
    try:
        _log_readahead(agent, agent.actions.restore_readahead())
    except OSError as error:
        _log_failure(agent, error)


def _log_failure(agent: Agent, error: OSError) -> None:
    agent.events.warning("page_cache.restore.failed", reason=str(error), hint="sudo cat /run/sparkd/readahead.json")


def _log_readahead(agent: Agent, change: ReadaheadChange | None) -> None:
    if change is not None:
        agent.events.info(
            "page_cache.readahead.changed", path=change.path, before_kib=change.before_kib, kib=change.after_kib
        )


def release_page_cache(agent: Agent, running: Running) -> None:
    """Start the thread that releases page cache until the engine serves, and keeps free memory in large blocks."""
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
        over=lambda: running.ready or running.log.broken_off_at is not None,
        drop=agent.actions.drop_file_cache if may_drop else None,
        loaded=partial(_restore, agent),
        contiguous=ContiguousMemory(
            agent.host, round(contiguous_gib * GIB), agent.actions.compact_memory, agent.events
        ),
        events=agent.events,
    )
    running.page_cache = release
    agent.run_aside("page-cache", release.run)
