"""When memory is compacted during a load, how often, and what is reported of it."""

import time
from functools import partial

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import PATIENCE_SECONDS

from sparkd.agent.actions import page_cache
from sparkd.agent.engine.contiguous_memory import LONGEST_PAUSE_SECONDS, CompactionPace, ContiguousMemory
from sparkd.agent.preflight.fixes import WORTH_COMPACTING_BYTES, Applied, CompactMemory
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB

TAKES_SECONDS = 0.1
COMPACT = "/proc/sys/vm/compact_memory"


@pytest.mark.parametrize(
    ("gained_bytes", "seconds", "next_in_seconds"),
    [
        pytest.param(WORTH_COMPACTING_BYTES, 0.5, 10, id="gained"),
        pytest.param(WORTH_COMPACTING_BYTES - 1, 0.5, 20, id="too little"),
        pytest.param(8 * GIB, 4.0, 40, id="ten times as long as it took"),
        pytest.param(0, 30.0, 300, id="also where it gained nothing"),
    ],
)
def test_the_pause_grows_with_what_it_costs(gained_bytes: int, seconds: float, next_in_seconds: float) -> None:
    assert CompactionPace().after(gained_bytes, 1000.0, 1000.0 + seconds).due_at == 1000.0 + seconds + next_in_seconds


def test_a_load_of_ten_minutes_where_nothing_is_gained_compacts_six_times() -> None:
    pace, now, times = CompactionPace(), 0.0, []
    while now < 600:
        if now >= pace.due_at:
            times.append(now)
            pace = pace.after(0, now, now)
        now += 1
    assert times == [0, 20, 60, 140, 300, 460]
    assert pace.pause_seconds == LONGEST_PAUSE_SECONDS
    assert pace.after(WORTH_COMPACTING_BYTES, now, now).pause_seconds == CompactionPace().pause_seconds, (
        "a gain begins again"
    )


class Machine:
    """A machine made of files: a drop and a compaction gain what the test says."""

    def __init__(self, tree: Tree, *, large_gib: float, small_gib: float, gains_gib: float = 0) -> None:
        self.tree, self.events = tree, EventLines()
        self.blocks, self.gains_gib = (large_gib, small_gib), gains_gib
        self.done: list[str] = []
        self.drop_frees_gib = 0.0
        tree.file("/proc/meminfo", "MemFree: 1 kB\n")
        tree.buddyinfo(*self.blocks)
        self.guard = ContiguousMemory(Host(tree.root), 8 * GIB, self.compact, self.events)

    def move(self, large_gib: float, small_gib: float) -> None:
        self.blocks = (self.blocks[0] + large_gib, self.blocks[1] + small_gib)
        self.tree.buddyinfo(*self.blocks)

    def compact(self, fix: CompactMemory) -> Applied:
        assert fix == CompactMemory(8 * GIB)
        self.done.append("compacted")
        time.sleep(TAKES_SECONDS)
        self.move(self.gains_gib, -self.gains_gib)
        return Applied("applied")

    def drop(self) -> None:
        self.done.append("dropped")
        self.move(self.drop_frees_gib, 0)

    def keep(self) -> str:
        """What has been done so far, in its order."""
        self.guard.keep(self.drop)
        return " ".join(self.done)


def test_nothing_is_done_while_enough_is_free_in_large_blocks(tree: Tree) -> None:
    machine = Machine(tree, large_gib=8, small_gib=50)
    assert machine.keep() == ""
    machine.move(-1, 0)
    assert machine.keep() == "dropped compacted"


def test_a_drop_that_is_enough_spares_the_compaction(tree: Tree) -> None:
    machine = Machine(tree, large_gib=7, small_gib=5)
    machine.drop_frees_gib = 2
    assert machine.keep() == "dropped"
    assert machine.events.lines == []


def test_where_little_is_scattered_a_compaction_could_gain_nothing(tree: Tree) -> None:
    assert Machine(tree, large_gib=2, small_gib=0.2).keep() == "dropped"


def test_the_gain_of_a_compaction_is_reported_and_the_next_one_waits(tree: Tree) -> None:
    machine = Machine(tree, large_gib=1, small_gib=5, gains_gib=3)
    assert machine.keep() == "dropped compacted"
    assert machine.keep() == "dropped compacted"
    (line,) = machine.events.lines
    gain, _, seconds = line.partition(" seconds=")
    assert gain == f"memory.compaction.finished free_bytes={6 * GIB} large_bytes={4 * GIB} gained_bytes={3 * GIB}"
    assert TAKES_SECONDS <= float(seconds) < PATIENCE_SECONDS


@pytest.mark.parametrize("text", ["Node 0, zone\n", ""])
def test_an_unreadable_table_is_reported_once_and_nothing_is_done(tree: Tree, text: str) -> None:
    machine = Machine(tree, large_gib=1, small_gib=5)
    tree.file("/proc/buddyinfo", text)
    assert machine.keep() == ""
    tree.buddyinfo(0, 5)
    assert machine.keep() == ""
    (line,) = machine.events.lines
    assert line.startswith("memory.compaction.failed reason=")


def test_a_kernel_that_refuses_is_reported_once(tree: Tree) -> None:
    tree.folder(COMPACT)
    machine = Machine(tree, large_gib=1, small_gib=5)
    machine.guard.compact = partial(page_cache.compact_memory, Host(tree.root))
    machine.keep()
    machine.keep()
    (line,) = machine.events.lines
    assert line.startswith(f"memory.compaction.failed reason={COMPACT}: Is a directory")


def test_a_need_of_zero_turns_it_off(tree: Tree) -> None:
    machine = Machine(tree, large_gib=0, small_gib=5)
    machine.guard.wanted_bytes = 0
    (tree.root / "proc/buddyinfo").unlink()
    assert machine.keep() == ""
    assert machine.events.lines == [], "nothing is read either"
