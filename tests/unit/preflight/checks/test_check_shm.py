"""Shared memory that no process uses any more: whose it is, and when it is unlinked."""

import os

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.rank_records import rank_record
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.shared_memory import SegmentFacts, SharedMemory, ShmFacts
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.host import Host
from sparkd.base.state.rank_record import RANK_FILE

DEVICE = 30
UPTIME_SECONDS = 100.0
ORPHAN = SegmentFacts("/dev/shm/psm_0123abcd", DEVICE, 7, 1000, 500, uid=0, links=1, age_seconds=61, used_by=())
RECORDED = replace(ORPHAN, uid=1000, age_seconds=1, of_rank=True)


def test_an_orphan_warns_and_is_to_be_unlinked_by_its_identity() -> None:
    verdict = SharedMemory().judge(ShmFacts(DEVICE, (ORPHAN,), (), UPTIME_SECONDS))
    expect(verdict, Level.WARN, fixes=(UnlinkSegment("/dev/shm/psm_0123abcd", DEVICE, 7, frees_bytes=500),))


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param(replace(ORPHAN, used_by=(10,)), id="in use"),
        pytest.param(replace(ORPHAN, age_seconds=60), id="young"),
        pytest.param(replace(ORPHAN, age_seconds=-5), id="from a clock ahead of ours"),
        pytest.param(replace(ORPHAN, age_seconds=101), id="older than the boot: the clock was set since"),
        pytest.param(replace(ORPHAN, uid=1000), id="of another user"),
        pytest.param(replace(ORPHAN, device=31), id="on another device"),
        pytest.param(replace(ORPHAN, links=2), id="of two names"),
        pytest.param(replace(RECORDED, used_by=(10,)), id="a rank's, and in use"),
        pytest.param(replace(RECORDED, links=2), id="a rank's, of two names"),
        pytest.param(replace(RECORDED, device=31), id="a rank's, on another device"),
    ],
)
def test_a_segment_that_may_be_used_or_anothers_is_kept(segment: SegmentFacts) -> None:
    expect(SharedMemory().judge(ShmFacts(DEVICE, (segment,), (), UPTIME_SECONDS)), Level.OK, fixes=())


def test_what_a_rank_left_by_its_record_is_an_orphan_at_once_of_whatever_user() -> None:
    verdict = SharedMemory().judge(ShmFacts(DEVICE, (RECORDED,), (), UPTIME_SECONDS))
    expect(verdict, Level.WARN, fixes=(UnlinkSegment(ORPHAN.path, DEVICE, 7, 500),))


def test_a_record_names_segments_by_identity_once_its_rank_has_ended(tree: Tree) -> None:
    own, replaced = tree.segment("psm_0123abcd"), tree.segment("psm_4567abcd")
    named = {"/dev/shm/psm_0123abcd": (own.st_dev, own.st_ino), "/dev/shm/psm_4567abcd": (replaced.st_dev, 1)}
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    tree.file(RANK_FILE.path, RANK_FILE.encode(rank_record(pid=10, start_time=100, segments=named)))
    check, host = SharedMemory(), Host(tree.root, owner_uid=os.getuid() + 1)
    tree.process(10, "tini", start_time=101)
    assert [fix.inode for fix in check.run(host)[1].fixes if isinstance(fix, UnlinkSegment)] == [own.st_ino]
    tree.process(10, "tini", start_time=100)
    assert check.run(host)[1].fixes == (), "a living rank may hand it to another process"


def test_an_unreadable_process_keeps_every_segment() -> None:
    expect(SharedMemory().judge(ShmFacts(DEVICE, (ORPHAN,), (10,), UPTIME_SECONDS)), Level.WARN, "pid 10", fixes=())


def test_only_names_that_an_engine_gives_are_looked_at(tree: Tree) -> None:
    queue = "vllm_dist_00112233445566778899aabbccddeeff-tp:0-[0-1]-cpushm_0"
    names = ("nccl-Ab12cD", "psm_0123abcd", "sem.mp-a8x_0lk2", queue)
    other = (
        "psm_0123abc",
        "psm_0123abcde",
        "psm_0123ABCD",
        "my_psm_0123abcd",
        "sem.other",
        "snd-shm-1234",
    )  # words: keep
    for name in (*names, *other, "psm_0123abcd\n"):
        tree.segment(name)
    facts = SharedMemory().probe(Host(tree.root))
    assert sorted(segment.path for segment in facts.segments) == [f"/dev/shm/{name}" for name in names]


def test_segments_are_orphans_of_their_owner_unless_in_use(tree: Tree) -> None:
    segment = tree.segment("psm_0123abcd")
    tree.process(1, "systemd")
    check, host = SharedMemory(), Host(tree.root, owner_uid=os.getuid())
    assert [fix.inode for fix in check.run(host)[1].fixes if isinstance(fix, UnlinkSegment)] == [segment.st_ino]
    assert check.run(Host(tree.root, owner_uid=os.getuid() + 1))[1].fixes == ()
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/shm/psm_0123abcd",))
    assert check.run(host)[1].reason == "no orphaned segments, 1 in use"
