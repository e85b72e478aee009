"""A worker that follows its head, with a rank that is a process of the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.unit.agent_steps import StepsThread, running_steps
from tests.unit.cluster_nodes import AgentUnderTest, running
from tests.unit.nodes import until

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.ended_engine import conclude_if_ended
from sparkd.agent.daemon.serving import follow_head
from sparkd.agent.engine.rank import Running

LOADING = "(Worker_TP1 pid=12) INFO 01-01 00:00:00 [x.py:1] Starting to load model /models/tiny..."
STOPS = "(MainProcess pid=7) INFO 01-01 00:00:00 [x.py:479] [shutdown] Executor: waiting for worker exit count=1"


@contextmanager
def following(
    worker: AgentUnderTest, *lines: str, docker_goes: bool = False
) -> Iterator[tuple[Running, subprocess.Popen[bytes], StepsThread]]:
    """A worker that follows its head, with a rank that has logged these lines."""

    def follow(agent: Agent) -> None:
        with conclude_if_ended(agent):
            follow_head(agent, rank)

    with (
        running(worker.agent, *lines, docker_goes=docker_goes) as (rank, process),
        running_steps(worker, follow) as walk,
    ):
        yield rank, process, walk


def end_rank(rank: Running, process: subprocess.Popen[bytes]) -> None:
    """End its process, once a cause is known from its log."""
    until(lambda: rank.log.progress.cause != "")
    process.kill()
