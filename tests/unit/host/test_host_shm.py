"""Segments of shared memory, and the processes that have them open or mapped."""

import os

import pytest
from tests.tree import Tree

from sparkd.base.host import Host


def line(status: os.stat_result, path: str = "/dev/shm/psm_00000001") -> str:
    """The line of /proc/PID/maps for a file."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return f"7f00-7f01 rw-s 00000000 {device} {status.st_ino}    {path}\n"


def find_users(tree: Tree) -> tuple[int, ...]:
    """Processes that use the only segment, where none is unreadable."""
    host = Host(tree.root)
    (segment,) = host.segments()
    uses = host.segment_uses(host.processes(), (segment,))
    assert uses.unreadable_pids == ()
    return uses.pids(segment)


def find_unreadable(tree: Tree) -> tuple[int, ...]:
    host = Host(tree.root)
    return host.segment_uses(host.processes(), host.segments()).unreadable_pids


def test_segments_are_the_regular_files(tree: Tree) -> None:
    status = tree.segment("psm_00000001", "12345", age_seconds=100)
    tree.folder("/dev/shm/folder")
    tree.link("/dev/shm/link", "/dev/shm/psm_00000001")
    (segment,) = Host(tree.root).segments()
    assert segment.name == "psm_00000001"
    assert segment.inode == status.st_ino
    assert segment.size_bytes == 5
    assert segment.links == 1
    assert 99 < segment.age_seconds < 110


def test_a_machine_without_dev_shm_has_no_segments(tree: Tree) -> None:
    (tree.root / "dev/shm").rmdir()
    assert Host(tree.root).segments() == ()


def test_a_process_that_maps_a_segment_uses_it_whatever_its_path(tree: Tree) -> None:
    status = tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", maps=line(status, "/somewhere/else (deleted)"))
    tree.process(11, "other", maps="7f00-7f01 rw-s 00000000 00:00 0 \n")
    assert find_users(tree) == (10,)


def test_another_inode_of_the_same_device_is_another_file(tree: Tree) -> None:
    status = tree.segment("psm_00000001")
    tree.process(10, "other", maps=line(status).replace(f" {status.st_ino} ", f" {status.st_ino}0 "))
    assert find_users(tree) == ()


def test_a_process_that_has_a_segment_open_uses_it(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", opened=("/dev/shm/psm_00000001",))
    assert find_users(tree) == (10,)


def test_a_file_of_the_same_name_elsewhere_is_another_file(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.file("/tmp/psm_00000001")
    tree.process(10, "other", opened=("/tmp/psm_00000001",))
    host = Host(tree.root)
    assert host.segment_uses(host.processes(), host.segments()).used == ()


def test_kernel_threads_and_zombies_use_nothing(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(2, "kthreadd", kernel=True)
    tree.process(10, "VLLM::Worker_TP", state="Z")
    for pid in (2, 10):
        (tree.root / f"proc/{pid}/maps").unlink()
    assert find_users(tree) == ()


def test_a_process_whose_threads_have_all_ended_uses_nothing(tree: Tree) -> None:
    tree.segment("psm_00000001")
    tree.process(10, "VLLM::Worker_TP", state="Z", threads=3)
    assert find_users(tree) == ()


@pytest.fixture
def living_thread(tree: Tree) -> str:
    """The folder of the thread that lives, of a process whose first thread has ended."""
    tree.process(10, "VLLM::Worker_TP", state="Z", threads=2)
    for tid, state in ((10, "Z"), (11, "X"), (12, "S")):
        stat = f"{tid} (VLLM::Worker_TP) {state} 1 10 10 0 -1 0 " + "0 " * 10 + "2 0 100 0\n"
        tree.file(f"/proc/10/task/{tid}/stat", stat)
        tree.file(f"/proc/10/task/{tid}/maps")
        tree.folder(f"/proc/10/task/{tid}/fd")
    return "/proc/10/task/12"


def test_where_the_first_thread_has_ended_a_living_one_has_the_mappings(tree: Tree, living_thread: str) -> None:
    tree.file(f"{living_thread}/maps", line(tree.segment("psm_00000001")))
    assert find_users(tree) == (10,)


def test_where_the_first_thread_has_ended_a_living_one_has_the_open_files(tree: Tree, living_thread: str) -> None:
    tree.segment("psm_00000001")
    tree.link(f"{living_thread}/fd/3", "/dev/shm/psm_00000001")
    assert find_users(tree) == (10,)


def test_a_process_with_unreadable_mappings_is_reported(tree: Tree) -> None:
    tree.process(10, "other")
    tree.path("/proc/10/maps").unlink()
    tree.folder("/proc/10/maps")  # reading a folder as a file is refused to root too
    assert find_unreadable(tree) == (10,)


def test_a_process_with_unreadable_descriptors_is_reported(tree: Tree) -> None:
    tree.process(10, "other")
    tree.path("/proc/10/fd").rmdir()
    tree.file("/proc/10/fd")
    assert find_unreadable(tree) == (10,)
