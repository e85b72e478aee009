from __future__ import annotations

import os

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.host import Host
from sparkd.preflight.check import Level
from sparkd.preflight.fixes import UnlinkSegment
from sparkd.preflight.shm import SegmentFacts, SharedMemory, ShmFacts

DEVICE = 30
ORPHAN = SegmentFacts(
    path="/dev/shm/psm_0123abcd",
    device=DEVICE,
    inode=7,
    size_bytes=1000,
    allocated_bytes=500,
    uid=0,
    links=1,
    age_seconds=61,
    used_by=(),
)


def test_an_orphan_warns_and_is_to_be_unlinked_by_its_identity() -> None:
    verdict = SharedMemory().judge(ShmFacts(DEVICE, (ORPHAN,), ()))
    assert verdict.level is Level.WARN
    assert verdict.fixes == (UnlinkSegment("/dev/shm/psm_0123abcd", DEVICE, 7, frees_bytes=500),)


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param(replace(ORPHAN, used_by=(10,)), id="in use"),
        pytest.param(replace(ORPHAN, age_seconds=60), id="young"),
        pytest.param(replace(ORPHAN, age_seconds=-5), id="from a clock ahead of ours"),
        pytest.param(replace(ORPHAN, uid=1000), id="of another user"),
        pytest.param(replace(ORPHAN, device=31), id="on another device"),
        pytest.param(replace(ORPHAN, links=2), id="of two names"),
    ],
)
def test_anything_else_is_kept(segment: SegmentFacts) -> None:
    verdict = SharedMemory().judge(ShmFacts(DEVICE, (segment,), ()))
    assert (verdict.level, verdict.fixes) == (Level.OK, ())


def test_where_a_process_cannot_be_looked_at_all_is_kept_and_said() -> None:
    verdict = SharedMemory().judge(ShmFacts(DEVICE, (ORPHAN,), (10,)))
    assert (verdict.level, verdict.fixes) == (Level.WARN, ())
    assert "pid 10" in verdict.reason


def test_other_users_segments_are_orphans_only_if_the_recipe_runs_as_them() -> None:
    facts = ShmFacts(DEVICE, (replace(ORPHAN, uid=1000),), ())
    assert SharedMemory(owners=(0, 1000)).judge(facts).level is Level.WARN


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("psm_0123abcd", True),
        ("psm_0123abc", False),
        ("psm_0123abcde", False),
        ("psm_0123ABCD", False),
        ("sem.mp-a8x_0lk2", True),
        ("nccl-Ab12cD", True),
        ("vllm_dist_00112233445566778899aabbccddeeff-tp:0-[0-1]-cpushm_0", True),
        ("my_psm_0123abcd", False),
        ("sem.other", False),
        ("pulse-shm-1234", False),
        ("psm_0123abcd\n", False),
    ],
)
def test_only_names_that_an_engine_gives_are_looked_at(tree: Tree, name: str, ours: bool) -> None:
    tree.segment(name)
    facts = SharedMemory(owners=(os.getuid(),)).probe(Host(tree.root))
    assert bool(facts.segments) is ours


def test_an_orphan_is_found_in_a_tree(tree: Tree) -> None:
    found = tree.segment("psm_0123abcd")
    tree.process(1, "systemd")
    check = SharedMemory(owners=(os.getuid(),))
    verdict = check.judge(check.probe(Host(tree.root)))
    assert [fix.inode for fix in verdict.fixes if isinstance(fix, UnlinkSegment)] == [found.st_ino]


def test_a_segment_in_use_is_found_in_use(tree: Tree) -> None:
    tree.segment("psm_0123abcd")
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/shm/psm_0123abcd",))
    check = SharedMemory(owners=(os.getuid(),))
    assert check.judge(check.probe(Host(tree.root))).reason == "no orphaned segments, 1 in use"
