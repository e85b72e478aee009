"""The shared memory that a rank leaves behind is known, also where the look at it was given up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone, running

from sparkd.agent.engine.rank import Running
from sparkd.base.host import Host
from sparkd.base.host.processes import Process
from sparkd.base.host.shm import Segment, Uses
from sparkd.base.lib.endings import Ending, Stage


class SlowHost(Host):
    """A machine whose mappings take a moment to read."""

    def segment_uses(self, among: Iterable[Process], wanted: Iterable[Segment]) -> Uses:
        time.sleep(0.2)
        return super().segment_uses(among, wanted)


def end() -> None:
    raise LookupError("the run ends")


@pytest.mark.parametrize("ends_during_a_look", [False, True])
def test_a_look_that_is_given_up_hides_no_segment_from_the_next_one(tree: Tree, ends_during_a_look: bool) -> None:
    with agent_under_test(tree, 0, alone()) as made, running(made.agent) as (rank, process):
        machine = Tree(tree.root / "node0")
        segment = machine.segment("psm_0123abcd")
        device = f"{os.major(segment.st_dev):02x}:{os.minor(segment.st_dev):02x}"
        maps = f"7f0000000000-7f0040000000 rw-s 00000000 {device} {segment.st_ino} /dev/shm/psm_0123abcd\n"
        machine.process(process.pid, "tini")
        machine.process(process.pid + 1, "VLLM::Worker", parent=process.pid, maps=maps)
        host, loop = SlowHost(machine.root), made.agent.loop
        slow = Running(rank.rank, rank.log, rank.record, repr, host, loop)
        if ends_during_a_look:
            loop.end_by(Ending(end))
            loop.wake()
            with pytest.raises(LookupError):
                slow.note_segments()
            time.sleep(0.4)  # it ends by itself, and nobody takes its result
        else:
            slow.note_segments()
            assert len(slow.segments) == 1
        loop.enter(Stage.END)
        assert slow.kill(1.0)
        assert [found.path for found in slow.segments] == ["/dev/shm/psm_0123abcd"]
