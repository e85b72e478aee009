"""What may end a run, in the order that decides between two that are seen at once.

A request to stop, and the error of a task, come before all of these: `lib.endings.Endings` has them.
"""

from __future__ import annotations

from functools import partial

from sparkd.agent.deps import Deps
from sparkd.agent.switching import watch_switch
from sparkd.lib.endings import Ending, Stage
from sparkd.lib.errors import RankEndedError


def endings(agent: Deps) -> tuple[Ending, ...]:
    return (
        # The driver may take seconds to end a killed rank: another node's end in that time would seem to be the cause.
        Ending(partial(_raise_if_killed, agent), until=Stage.INQUEST),
        Ending(partial(watch_switch, agent)),
        Ending(partial(_check_peers, agent), until=Stage.INQUEST),
        Ending(partial(_raise_if_ended, agent)),
    )


def _raise_if_killed(agent: Deps) -> None:
    running = agent.state.running
    if running is not None and running.guard is not None:
        running.guard.raise_if_killed()


def _check_peers(agent: Deps) -> None:
    agent.sample_memory()
    agent.monitor.check()


def _raise_if_ended(agent: Deps) -> None:
    running = agent.state.running
    if running is not None and running.rank.ended.is_set():
        raise RankEndedError("the engine ended")
