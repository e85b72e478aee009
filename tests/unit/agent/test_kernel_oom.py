"""A rank that the kernel killed for want of memory has that cause."""

import time
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, running
from tests.unit.nodes import until

from sparkd.agent.daemon.ended_engine import conclude_end
from sparkd.base.lib.errors import EngineEndedError, RankEndedError

WORKER_DIED = (
    "(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
)
BOOM = ("RuntimeError: boom",)
OOM_KILL = """\
6,1,{us},-;Tasks state (memory values in pages):
6,2,{us},-;[  29907]     0 29907   669159   666593   666560       33         0  5394432        0             0 python3
6,3,{us},-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,{limit},task_memcg={group},\
task=python3,pid=29907,uid=0
"""
OWN, OTHER = f"/system.slice/docker-{'c' * 64}.scope", f"/system.slice/docker-{'d' * 64}.scope"
KILLED_IN_LOAD = (
    "(MainProcess pid=7) INFO 01-01 00:00:00 [x.py:479] [shutdown] Executor: waiting for worker exit count=1",
    "Traceback (most recent call last):",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace",
)
STOPPED = KILLED_IN_LOAD[:1]


def files(node: AgentUnderTest) -> Tree:
    return Tree(Path(node.agent.host.files.root))


def end_rank(node: AgentUnderTest, lines: tuple[str, ...], oom_kills: int | None = None) -> EngineEndedError:
    """Kill a rank that has logged these lines, and began at this count of the kernel's kills; the run's error."""
    with running(node.agent, *lines) as (rank, process):
        rank.note(oom_kills=oom_kills)
        if lines:
            until(lambda: rank.log.progress.cause != "" and not rank.log.progress.tracing)
        process.kill()
        return conclude_end(node.agent, RankEndedError("the engine ended"))


@pytest.mark.parametrize("lines", [(), WORKER_DIED, KILLED_IN_LOAD], ids=["silent", "worker died", "in its load"])
def test_a_kill_that_the_kernel_has_counted_is_named(planned_worker: AgentUnderTest, lines: tuple[str, ...]) -> None:
    files(planned_worker).file("/proc/vmstat", "nr_free_pages 1\noom_kill 4\n")
    error = end_rank(planned_worker, lines, oom_kills=3)
    assert error.cause == "kernel-oom"
    assert "killed for want of memory" in error.reason


@pytest.mark.parametrize(
    ("lines", "before", "cause"),
    [
        (BOOM, 3, "engine-error"),  # the engine names another cause
        ((), 4, "engine-ended"),
        (WORKER_DIED, 4, "killed-from-outside"),
        ((), None, "engine-ended"),
    ],
)
def test_a_kill_that_may_be_an_earlier_one_or_another_ones_is_not_named(
    planned_worker: AgentUnderTest, lines: tuple[str, ...], before: int | None, cause: str
) -> None:
    files(planned_worker).file("/proc/vmstat", "nr_free_pages 1\noom_kill 4\n")
    error = end_rank(planned_worker, lines, before)
    assert error.cause == cause
    assert "killed for want of memory" not in error.reason


def log_kill(node: AgentUnderTest, group: str, age_seconds: float, limit: str = "global_oom") -> None:
    """The kernel's log has the kill of a process of this group, so long ago."""
    at = round((time.monotonic() - age_seconds) * 1e6)
    files(node).file("/dev/kmsg", OOM_KILL.format(us=at, group=group, limit=limit))


@pytest.mark.parametrize("lines", [KILLED_IN_LOAD, STOPPED, BOOM], ids=["killed", "stopped", "boom"])
def test_the_kernels_own_record_names_the_process_of_the_rank_that_it_killed(
    planned_worker: AgentUnderTest, lines: tuple[str, ...]
) -> None:
    log_kill(planned_worker, OWN, 5)
    error = end_rank(planned_worker, lines)
    assert error.cause == "kernel-oom"
    named = "python3 (pid 29907, 2.5 GiB), at the whole machine's memory; the largest processes then: python3 2.5 GiB"
    assert named in error.reason


@pytest.mark.parametrize(
    ("lines", "group", "age_seconds", "cause"),
    [
        (KILLED_IN_LOAD, OWN, 500, "killed-from-outside"),
        (KILLED_IN_LOAD, OTHER, 5, "killed-from-outside"),
        (STOPPED, OTHER, 5, "engine-stopped"),
    ],
)
def test_a_record_of_an_old_kill_or_of_another_container_names_nothing(
    planned_worker: AgentUnderTest, lines: tuple[str, ...], group: str, age_seconds: float, cause: str
) -> None:
    log_kill(planned_worker, group, age_seconds)
    error = end_rank(planned_worker, lines)
    assert error.cause == cause
    assert "29907" not in error.reason
    assert "by signal 9" not in error.reason, "which signal it was is not known"


@pytest.mark.parametrize(
    ("age_seconds", "limit", "cause"),
    [
        (5, "global_oom", "kernel-oom"),
        (500, "global_oom", "engine-ended"),
        (5, f"oom_memcg={OTHER}", "engine-ended"),  # another container at its own limit, as one that restarts for ever
    ],
)
def test_a_counted_kill_without_a_record_of_the_ranks_own_is_named_if_the_machine_just_had_no_memory_left(
    planned_worker: AgentUnderTest, age_seconds: float, limit: str, cause: str
) -> None:
    """The record of the rank's own kill may have been dropped."""
    files(planned_worker).file("/proc/vmstat", "oom_kill 4\n")
    log_kill(planned_worker, OTHER, age_seconds, limit)
    assert end_rank(planned_worker, (), oom_kills=3).cause == cause
