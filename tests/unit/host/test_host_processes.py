"""Processes as /proc has them: the table, and details of one."""

import os
import time

import pytest
from tests.tree import Tree
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.host.cgroups import Group
from sparkd.base.host.processes import Details, Process, ProcessTable, parse_stat

ID = "0123456789abcdef" * 4


def test_scan_reads_every_process_and_passes_over_what_is_none(tree: Tree) -> None:
    tree.process(7, "vllm", parent=1, group=5, state="R", threads=3, start_time=99)
    tree.process(2, "kthreadd", parent=0, group=0, kernel=True)
    tree.file("/proc/self/stat", "7 (vllm) S 1 1 1")
    tree.file("/proc/9/stat", "")
    tree.folder("/proc/10")
    assert Host(tree.root).processes().processes == (
        Process(2, "kthreadd", "S", 0, 0, 1, 100, kernel=True),
        Process(7, "vllm", "R", 1, 5, 3, 99),
    )


@pytest.mark.parametrize("comm", ["a b", "a) S 1", "(", ") ) )", ""])
def test_a_name_with_brackets_and_blanks_hides_no_field(comm: str) -> None:
    rest = " ".join(["Z", "11", "12"] + ["0"] * 14 + ["1", "0", "77", "0"])
    process = parse_stat(f"5 ({comm}) {rest}".encode())
    assert process == Process(5, comm, "Z", 11, 12, 1, 77)


def test_a_name_cannot_move_the_cursor(tree: Tree) -> None:
    tree.process(7, "\x1b[2J")
    assert Host(tree.root).processes().processes[0].comm == "\\x1b[2J"


def test_descendants_and_group_leader(tree: Tree) -> None:
    tree.process(10, "vllm", group=10)
    tree.process(11, "VLLM::EngineCor", parent=10, group=10)
    tree.process(12, "VLLM::Worker_TP", parent=11, group=10)
    tree.process(13, "other", parent=1, group=9)
    table = Host(tree.root).processes()
    assert [process.pid for process in table.descendants(10)] == [11, 12]
    leaders = {process.pid: table.group_leader(process) for process in table}
    assert present(leaders[12]).pid == 10
    assert leaders[13] is None


def test_details_of_a_process_in_a_container(tree: Tree) -> None:
    tree.process(7, "VLLM::Worker_TP", cgroup=f"0::/docker/{ID}", namespace_pid=1, private_kib=4)
    host = Host(tree.root)
    details = host.details(host.processes().processes[0])
    assert details == Details(0, namespace_pid=1, anonymous_bytes=4096, shared_bytes=0, group=Group(ID))


def test_the_nuls_that_pad_a_command_line_are_no_words(tree: Tree) -> None:
    tree.process(7, "VLLM::Worker_TP", argv=("VLLM::Worker_TP0", "", "", ""))
    host = Host(tree.root)
    assert host.argv(host.processes().processes[0]) == ("VLLM::Worker_TP0",)


def test_details_of_this_process() -> None:
    host = Host()
    (own,) = (process for process in host.processes() if process.pid == os.getpid())
    details = present(host.details(own))
    assert details.uid == os.geteuid()
    assert details.frees_bytes > 0


def test_a_status_of_another_format_is_an_error(tree: Tree) -> None:
    tree.process(7, "vllm")
    tree.file("/proc/7/status", "Name:\tvllm\n")
    host = Host(tree.root)
    with pytest.raises(ValueError, match="/proc/7/status has another format"):
        host.details(host.processes().processes[0])


def test_a_reused_pid_has_no_details(tree: Tree) -> None:
    tree.process(7, "vllm", start_time=1)
    host = Host(tree.root)
    judged = host.processes().processes[0]
    tree.process(7, "bash", start_time=2)
    assert host.details(judged) is None


def test_a_process_with_the_most_groups_has_details(tree: Tree) -> None:
    tree.process(7, "vllm", private_kib=4)
    status = tree.root / "proc/7/status"
    status.write_text(
        f"Groups:\t{' '.join(str(4_000_000_000 + number) for number in range(1 << 16))}\n{status.read_text()}"
    )
    host = Host(tree.root)
    assert present(host.details(host.processes().processes[0])).frees_bytes == 4096


def test_two_thousand_processes_are_scanned_within_a_fifth_of_a_second(tree: Tree) -> None:
    """The time is a processor's; the bench has ten thousand real processes."""
    for pid in range(1, 2_001):
        folder = tree.root / "proc" / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (sleep) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n")
    host = Host(tree.root)
    began = time.thread_time()
    assert len(host.processes().processes) == 2_000
    assert time.thread_time() - began < 0.2


def test_the_topmost_of_thirty_thousand_processes_are_found_in_one_walk() -> None:
    """A chain, and at its end as many children: a walk up from each of these would take minutes."""
    half = 15_000
    chain = [Process(pid, "sh", "S", pid - 1, 1, 1, 1) for pid in range(2, half)]
    leaves = [Process(pid, "VLLM::Worker_TP", "S", half - 1, 1, 1, 1) for pid in range(half, 2 * half)]
    table = ProcessTable((*chain, *leaves))
    began = time.process_time()
    assert table.topmost(leaf.pid for leaf in leaves) == tuple(range(half, 2 * half))
    assert table.topmost((half, 5, 2, 9)) == (2,)
    assert time.process_time() - began < 1
