"""The record of a rank as untrusted input."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.rank_records import rank_record

from sparkd.base.host import Host
from sparkd.base.state.rank_record import (
    RANK_FILE,
    KnownRank,
    RankRecord,
    RankStage,
    left_segments,
    read_rank,
)

STARTED = rank_record(container_id="a" * 64, pid=60, start_time=100, segments={"/dev/shm/psm_0123abcd": (1, 2)})


def recorded(tree: Tree, text: str) -> KnownRank:
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    tree.file(RANK_FILE.path, text)
    return read_rank(Host(tree.root))


def test_a_record_is_read_as_it_was_written_with_whether_its_process_lives(tree: Tree) -> None:
    assert recorded(tree, RANK_FILE.encode(STARTED)) == KnownRank(STARTED)
    tree.process(60, "tini", start_time=100)
    assert read_rank(Host(tree.root)) == KnownRank(STARTED, alive=True)
    tree.process(60, "tini", start_time=101)
    assert not read_rank(Host(tree.root)).alive, "another process with its pid"
    tree.process(60, "tini", start_time=100, state="Z")
    assert not read_rank(Host(tree.root)).alive


def test_no_record_and_one_of_another_boot_are_none(tree: Tree) -> None:
    assert read_rank(Host(tree.root)) == KnownRank()
    assert recorded(tree, RANK_FILE.encode(replace(STARTED, boot_id="before"))) == KnownRank()


@pytest.mark.parametrize(
    "text",
    ["", RANK_FILE.encode(STARTED)[:-9], RANK_FILE.encode(STARTED).replace('"schema": 1', '"schema": 2'),
     '{"schema": 1}', "[]", RANK_FILE.encode(STARTED).replace('"starting"', '"adopted"')],
    ids=["cut to nothing", "half", "of another version", "without its fields", "no object", "an unknown stage"],
)  # fmt: skip
def test_a_record_that_can_not_be_read_is_an_error_and_no_record(tree: Tree, text: str) -> None:
    known_rank = recorded(tree, text)
    assert known_rank.record is None
    assert known_rank.error.startswith("/run/sparkd/private/rank.json can't be read: ")


def test_a_record_without_a_boot_to_compare_with_is_an_error(tree: Tree) -> None:
    tree.file(RANK_FILE.path, RANK_FILE.encode(STARTED))
    assert read_rank(Host(tree.root)).error


def test_a_symlink_is_no_record(tree: Tree) -> None:
    tree.file("/tmp/forged", RANK_FILE.encode(STARTED))
    tree.link(RANK_FILE.path, "/tmp/forged")
    assert read_rank(Host(tree.root)).error


def test_fields_of_a_later_version_are_ignored(tree: Tree) -> None:
    text = RANK_FILE.encode(replace(STARTED, stage=RankStage.READY)).replace("{", '{"lease": [1],', 1)
    record = recorded(tree, text).record
    assert isinstance(record, RankRecord)
    assert (record.rank_id, record.stage) == ("rank", RankStage.READY)


@pytest.mark.parametrize(
    "path", ["/etc/psm_0123abcd", "/dev/shm/", "/dev/shm/sub/psm_0123abcd", "psm_0123abcd", "/dev/shm/" + "p" * 300]
)
def test_what_is_not_right_below_dev_shm_is_no_segment_that_is_left(tree: Tree, path: str) -> None:
    segment = tree.segment("psm_0123abcd")
    record = replace(STARTED, segments={path: (segment.st_dev, segment.st_ino)})
    tree.file("/proc/sys/kernel/random/boot_id", "boot\n")
    tree.file(RANK_FILE.path, RANK_FILE.encode(record))
    assert left_segments(Host(tree.root)) == {}
