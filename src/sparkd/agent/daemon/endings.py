"""What may end a run, in the order that decides between two that are seen at once.

A request to stop, and the error of a task, come before all of these: `base.lib.endings.Endings` has them.
"""

from __future__ import annotations

from functools import partial

from sparkd.agent.daemon.context import Agent
from sparkd.base.lib.endings import Ending, Stage


def endings(agent: Agent) -> tuple[Ending, ...]:
    return (
        # The driver may take seconds to end a killed rank: another node's end in that time would seem to be the cause.
        Ending(agent.rank.raise_if_killed, until=Stage.INQUEST),
        Ending(agent.switching.watch),
        Ending(partial(_check_peers, agent), until=Stage.INQUEST),
        Ending(agent.rank.raise_if_ended),
    )


def _check_peers(agent: Agent) -> None:
    agent.phase.sample_memory()
    agent.monitor.check()
