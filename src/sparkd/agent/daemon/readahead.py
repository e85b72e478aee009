"""Lowers the readahead of the model's disk before a load, and restores it once the weights are loaded."""

from collections.abc import Callable

from sparkd.agent.actions.readahead import ReadaheadChange
from sparkd.agent.daemon.context import Agent
from sparkd.base.lib.main_loop import Outcome

RESTORE_SECONDS = 1.0
"""Limit for one write to sysfs."""


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


def begin_restore(agent: Agent) -> Outcome[ReadaheadChange | None]:
    """Undo `lower_readahead`, also that of a killed agent, in a thread: sysfs may hang with its disk."""
    return agent.loop.start(
        agent.actions.restore_readahead, then=lambda outcome: restore_and_log(agent, outcome.result)
    )


def restore_readahead(agent: Agent) -> None:
    """Undo `lower_readahead`, and wait RESTORE_SECONDS at most."""
    agent.loop.wait_until(begin_restore(agent).done, RESTORE_SECONDS, shielded=True)


def restore_and_log(agent: Agent, restore: Callable[[], ReadaheadChange | None]) -> None:
    """Call `restore`, which undoes `lower_readahead` or has the result of that, and log what it changed."""
    try:
        _log_readahead(agent, restore())
    except OSError as error:  # also where no thread could be started: the next start restores it
        agent.events.warning("page_cache.restore.failed", reason=str(error), hint="sudo cat /run/sparkd/readahead.json")


def _log_readahead(agent: Agent, change: ReadaheadChange | None) -> None:
    if change is not None:
        agent.events.info(
            "page_cache.readahead.changed", path=change.path, before_kib=change.before_kib, kib=change.after_kib
        )
