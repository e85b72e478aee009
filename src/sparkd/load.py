"""What the agent does for a load beside watching it: the disk's readahead, and the load guard."""

from __future__ import annotations

import os
from functools import partial

from sparkd.agent import Agent
from sparkd.launch.start import Running
from sparkd.load_guard import LoadGuard

LOOK_SECONDS = 10.0
"""For the folder of the model, which may lie on a file server."""


def prepare(agent: Agent) -> None:
    """Before the container starts: the kernel tells a file how far to read ahead when it is opened."""
    kib = agent.settings.engine.load_readahead_kib
    if not kib:
        return
    try:
        lower = partial(agent.hands.lower_readahead, agent.plan.model_path, kib)
        change = agent.pulse.beside(lower, LOOK_SECONDS, f"looking at the disk of {agent.plan.model_path}")
    except (OSError, ValueError) as error:
        hint = "sparkd units install; file systems without a disk of their own (tmpfs, btrfs) have no such setting"
        agent.events.warning("load.readahead.kept", reason=str(error), hint=hint)
        return
    if change is not None:
        _tell(agent, change.path, change.before_kib, change.after_kib)


def accompany(agent: Agent, running: Running) -> None:
    """From now on, beside the main loop, until the weights are loaded."""
    guarded = agent.settings.memory.load_guard
    if not guarded and not agent.settings.engine.load_readahead_kib:
        return
    guard = LoadGuard(
        host=agent.host,
        model_path=agent.plan.model_path,
        pid=running.rank.pid,
        pidfd=os.dup(running.rank.pidfd),  # the rank's own may be closed while it is waited for
        story=lambda: running.log.story,
        # Once docker has gone away, the log may hide that the weights are loaded.
        over=lambda: running.ready or running.log.broken_off_at is not None,
        give_back=agent.hands.give_back if guarded else None,
        loaded=partial(restore, agent),
        events=agent.events,
    )
    agent.pulse.start(guard.run)


def restore(agent: Agent) -> None:
    """The readahead as it was before; also what an agent that was killed has left behind. From any thread."""
    try:
        change = agent.hands.restore_readahead()
    except OSError as error:
        agent.events.warning("load.readahead.left", reason=str(error), hint="cat /run/sparkd/readahead.json")
        return
    if change is not None:
        _tell(agent, change.path, change.before_kib, change.after_kib)


def _tell(agent: Agent, path: str, before_kib: int, after_kib: int) -> None:
    agent.events.info("load.readahead.set", path=path, before_kib=before_kib, kib=after_kib)
