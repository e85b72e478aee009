"""The start of an agent, up to its first step."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tests.tree import Tree
from tests.unit.agent_runs import record

from sparkd.agent.daemon.bootstrap import build_agent
from sparkd.agent.daemon.context import USUAL_PACE, Agent, Pace
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

T = TypeVar("T")


def start_agent(
    tree: Tree, use: Callable[[Agent], T], env: Mapping[str, str] = {}, pace: Pace = USUAL_PACE
) -> tuple[T, str]:
    """Start a head's agent, and use it; what that returns, and the journal."""

    def start(loop: MainLoop, notifier: Notifier, journal: Journal) -> T:
        return use(build_agent("head", loop, notifier, journal, ProcessLog(journal.put), env, tree.root, pace))

    return record(start)


def release(agent: Agent) -> None:
    agent.actions.release()
