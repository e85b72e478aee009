"""The shared memory that a rank leaves behind is known, also where the look at it was given up."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from tests.tree import Tree, maps_line
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import agent_under_test, alone, running

from sparkd.agent.engine.rank import Running
from sparkd.base.host import Host
from sparkd.base.host.processes import Process
from sparkd.base.host.shm import Segment, Uses
from sparkd.base.lib.endings import Ending, Stage
from sparkd.base.lib.main_loop import MainLoop, never

SEGMENT = "/dev/shm/psm_0123abcd"


def map_segment(machine: Tree) -> str:
    """A segment on this machine, as a process that has it mapped lists it."""
    segment = machine.segment("psm_0123abcd", age_seconds=5)
    machine.file("/proc/uptime", "60.00 1.00\n")
    return maps_line(segment.st_dev, segment.st_ino, SEGMENT)


class SlowHost(Host):
    """A machine whose mappings take a moment to read."""

    def segment_uses(self, among: Iterable[Process], wanted: Iterable[Segment]) -> Uses:
        time.sleep(0.2)
        return super().segment_uses(among, wanted)


def end_run() -> None:
    raise LookupError("the run ends")


@contextmanager
def rank_with_a_segment(tree: Tree) -> Iterator[tuple[Running, MainLoop]]:
    """A rank whose worker has a segment mapped, on a slow machine."""
    with agent_under_test(tree, 0, alone()) as node, running(node.agent) as (rank, process):
        machine, loop = Tree(tree.root / "node0"), node.agent.loop
        maps = map_segment(machine)
        machine.process(process.pid, "tini")
        machine.process(process.pid + 1, "VLLM::Worker", parent=process.pid, maps=maps, uid=os.getuid())
        slow = SlowHost(machine.root)
        yield Running(rank.rank, rank.log, rank.record, bool, slow, loop, rank.compilers), loop


def end(rank: Running, loop: MainLoop) -> None:
    loop.endings.enter(Stage.END)
    assert rank.kill(1.0)


def test_a_ranks_segments_are_known_before_and_after_its_end(tree: Tree) -> None:
    with rank_with_a_segment(tree) as (rank, loop):
        rank.note_segments()
        assert [segment.path for segment in rank.segments] == [SEGMENT]
        end(rank, loop)
        assert [segment.path for segment in rank.segments] == [SEGMENT]


def test_a_segment_that_has_grown_by_the_next_look_is_known_once(tree: Tree) -> None:
    with rank_with_a_segment(tree) as (rank, _):
        rank.note_segments()
        machine = Tree(tree.root / "node0")
        machine.segment("psm_0123abcd", "x" * 100_000, age_seconds=5)
        machine.segment("psm_89abcdef", age_seconds=5)  # a new one, so that there is another look
        rank.note_segments()
        assert [segment.path for segment in rank.segments] == [SEGMENT]


def test_a_look_that_the_runs_end_has_cut_short_hides_no_segment_from_the_next_one(tree: Tree) -> None:
    with rank_with_a_segment(tree) as (rank, loop):
        loop.endings.end_by(Ending(end_run))
        loop.wake()
        with pytest.raises(LookupError):
            rank.note_segments()
        time.sleep(0.4)  # it ends by itself, and nobody takes its result
        end(rank, loop)
        assert [segment.path for segment in rank.segments] == [SEGMENT]


def test_a_rank_that_serves_is_looked_at_again_without_waiting_and_what_is_gone_is_forgotten(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node, running(node.agent) as (rank, process):
        machine, loop = Tree(tree.root / "node0"), node.agent.loop
        record = replace(rank.record, segments={"/dev/shm/psm_89abcdef": (1, 1)})
        machine.process(process.pid, "tini", uid=os.getuid(), maps=map_segment(machine))
        slow = Running(rank.rank, rank.log, record, bool, SlowHost(machine.root), loop, rank.compilers)
        assert [segment.path for segment in slow.segments] == ["/dev/shm/psm_89abcdef"], "of the rank before it"
        began = unstalled()
        slow.follow_segments()
        slow.follow_segments()
        assert unstalled() - began < 0.1
        assert loop.wait_until(lambda: {*slow.record.segments} == {SEGMENT}, 5.0)
        assert [segment.path for segment in slow.segments] == [SEGMENT]


def test_a_rank_that_serves_is_looked_at_every_few_seconds_only(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[float]()

    def look(_rank: Running) -> tuple[()]:
        looks.append(time.monotonic())
        return ()

    with rank_with_a_segment(tree) as (rank, loop):
        monkeypatch.setattr(Running, "_find_segments", look)
        for _ in range(3):
            rank.follow_segments()
            assert loop.wait_until(lambda: bool(looks), 5.0)
            loop.wait_until(never, 0.05)
    assert len(looks) == 1
