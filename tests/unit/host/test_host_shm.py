import os

import pytest
from tests.tree import Tree

from sparkd.base.host import Host


def line(found: os.stat_result, path: str = "/dev/shm/psm_00000001") -> str:
    """The line of /proc/PID/maps for a file."""
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return f"7f00-7f01 rw-s 00000000 {device} {found.st_ino}    {path}\n"


def used_by(tree: Tree) -> tuple[tuple[int, ...], tuple[int, ...]]:
    host = Host(tree.root)
    segments = host.segments()
    uses = host.segment_uses(host.processes(), segments)
    return uses.pids(segments[0]), uses.unreadable_pids


def test_segments_are_the_regular_files(tree: Tree) -> None:
    status = tree.segment("psm_00000001", "12345", age_seconds=100)
    tree.folder("/dev/shm/folder")
    tree.link("/dev/shm/link", "/dev/shm/psm_00000001")
    (segment,) = Host(tree.root).segments()
    assert (segment.name, segment.inode, segment.size_bytes, segment.links) == (
        "psm_00000001", status.st_ino, 5, 1,
    )  # fmt: skip
    assert 99 < segment.age_seconds < 110


def test_a_machine_without_dev_shm_has_no_segments(tree: Tree) -> None:
    (tree.root / "dev/shm").rmdir()
    assert Host(tree.root).segments() == ()


def test_a_process_that_maps_a_segment_uses_it_whatever_its_path(tree: Tree) -> None:
    found = tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", maps=line(found, "/somewhere/else (deleted)"))
    tree.process(11, "other", maps="7f00-7f01 rw-s 00000000 00:00 0 \n")
    assert used_by(tree) == ((10,), ())


def test_another_inode_of_the_same_device_is_another_file(tree: Tree) -> None:
    found = tree.segment("psm_00000001")
    tree.process(10, "other", maps=line(found).replace(f" {found.st_ino} ", f" {found.st_ino}0 "))
    assert used_by(tree) == ((), ())


def test_a_process_that_has_a_segment_open_uses_it(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/shm/psm_00000001",))
    assert used_by(tree) == ((10,), ())


def test_a_file_of_the_same_name_elsewhere_is_another_file(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.file("/tmp/psm_00000001")
    tree.process(10, "other", opened=("/tmp/psm_00000001",))
    assert used_by(tree) == ((), ())
    host = Host(tree.root)
    assert host.segment_uses(host.processes(), host.segments()).used == ()


def test_kernel_threads_and_zombies_use_nothing(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(2, "kthreadd", kernel=True)
    tree.process(10, "VLLM::Worker_TP", state="Z")
    for pid in (2, 10):
        (tree.root / f"proc/{pid}/maps").unlink()
    assert used_by(tree) == ((), ())


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_where_the_first_thread_has_ended_a_living_one_has_the_files_of_the_process(tree: Tree, how: str) -> None:
    status = tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", state="Z", threads=2)
    for tid, state in ((10, "Z"), (11, "X"), (12, "S")):
        stat = f"{tid} (VLLM::Worker_TP) {state} 1 10 10 0 -1 0 " + "0 " * 10 + "2 0 100 0\n"
        tree.file(f"/proc/10/task/{tid}/stat", stat)
        tree.file(f"/proc/10/task/{tid}/maps", line(status) if (how, tid) == ("mapped", 12) else "")
        tree.folder(f"/proc/10/task/{tid}/fd")
    if how == "open":
        tree.link("/proc/10/task/12/fd/3", "/dev/shm/psm_00000001")
    assert used_by(tree) == ((10,), ())


def test_a_process_whose_threads_have_all_ended_uses_nothing(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", state="Z", threads=3)
    assert used_by(tree) == ((), ())


@pytest.mark.parametrize("hidden", ["maps", "fd"])
def test_an_unreadable_process_is_reported(tree: Tree, hidden: str) -> None:
    tree.segment("psm_00000001")
    tree.process(10, "other")
    real = tree.root / "proc/10" / hidden
    # Reading a folder as a file, or a file as a folder, is refused to root too.
    if hidden == "maps":
        real.unlink()
        real.mkdir()
    else:
        real.rmdir()
        real.write_text("")
    assert used_by(tree) == ((), (10,))
