"""Steps of an agent under test, in a thread of their own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test
from tests.unit.nodes import until

from sparkd.agent.daemon.blocked import retry_while_blocked
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.peer_wait import RANKS_SECONDS, join_epoch, wait_for_peers
from sparkd.base.config import Settings
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import SparkdError

E = TypeVar("E", bound=SparkdError)


class StepsThread:
    """Runs steps; `error` is what they raised."""

    def __init__(self, agent: AgentUnderTest, steps: Callable[[Agent], object]) -> None:
        self.error: SparkdError | None = None
        self.ended_at = 0.0
        self._agent = agent
        self._steps = steps
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._steps(self._agent.agent)
        except SparkdError as error:
            self.error = error
        except StopRequested:
            pass
        self.ended_at = time.monotonic()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> SparkdError | None:
        """Wait for its own end; its error."""
        self._thread.join(10)
        assert self.over
        return self.error

    def ended_by(self, kind: type[E]) -> E:
        """Wait for its own end, which is this kind of error."""
        error = self.join()
        assert isinstance(error, kind)
        return error

    def stop(self) -> None:
        self._agent.end()
        self._thread.join(10)


@contextmanager
def running_steps(agent: AgentUnderTest, steps: Callable[[Agent], object]) -> Iterator[StepsThread]:
    thread = StepsThread(agent, steps)
    try:
        yield thread
    finally:
        thread.stop()


def wait_and_join(agent: Agent, ranks_seconds: float = RANKS_SECONDS) -> None:
    wait_for_peers(agent)
    join_epoch(agent, ranks_seconds)


@contextmanager
def joined_worker(tree: Tree, configured: Settings) -> Iterator[AgentUnderTest]:
    """Rank 1, in the epoch of a head that calls."""
    with agent_under_test(tree, 1, configured) as worker:
        worker.set_plan("d")
        with running_steps(worker, wait_and_join) as walk:
            assert walk.join() is None
        worker.ended.clear()
        yield worker


def wait_while_blocked(agent: Agent) -> None:
    retry_while_blocked(agent, wait_and_join)


def await_message(agent: AgentUnderTest, text: str) -> None:
    until(lambda: text in agent.report.message)
