"""Which segments in shared memory are a rank's own."""

import os

import pytest
from tests.tree import Tree, maps_line

from sparkd.agent.actions.segments import find_own_segments
from sparkd.base.host import Host


@pytest.mark.parametrize(
    ("holder", "owner_is_holder", "age_seconds", "own"),
    [
        pytest.param(11, True, 50.0, True, id="a worker's"),
        pytest.param(10, True, 50.0, True, id="the container's first process's"),
        pytest.param(12, True, 50.0, False, id="of a process beside it, of the same user"),
        pytest.param(11, False, 50.0, False, id="of another user, and mapped"),
        pytest.param(11, True, 52.0, False, id="older than the rank, and mapped"),
        pytest.param(11, True, -2.0, False, id="of whatever age: the clock was set back since"),
    ],
)
def test_a_segment_is_a_ranks_that_its_user_has_made_since_its_start(
    tree: Tree, holder: int, owner_is_holder: bool, age_seconds: float, own: bool
) -> None:
    """The rank is 51 s old, and nothing goes by who its user is."""
    segment = tree.segment("psm_0123abcd", age_seconds=age_seconds)
    uid = os.getuid() if owner_is_holder else os.getuid() + 1
    tree.file("/proc/uptime", "60.00 1.00\n")
    maps = maps_line(segment.st_dev, segment.st_ino, "/dev/shm/psm_0123abcd")
    for pid, parent in ((10, 1), (11, 10), (12, 1)):
        tree.process(pid, "python3", parent=parent, start_time=900, maps=maps if pid == holder else "", uid=uid)
    assert bool(find_own_segments(Host(tree.root), 10)) is own
