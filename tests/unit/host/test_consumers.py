"""Who has the machine's memory: the processes of a container or unit together, small ones by their user."""

from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.consumers import read_consumers
from sparkd.base.lib.text import MIB

MIB_IN_KIB = 1 << 10
GIB_IN_KIB = 1 << 20
CONTAINER = "ab" * 32
USER_SERVICE = "/user.slice/user-1000.slice/user@1000.service"


def read(tree: Tree, gpu_bytes: dict[int, int] | None = None) -> list[tuple[str, str, int, int]]:
    """Kind, name, number of processes and MiB of each consumer, the largest first."""
    host = Host(tree.root)
    consumers = read_consumers(host.files, host.processes(), gpu_bytes or {})
    return [(consumer.kind, consumer.name, consumer.processes, consumer.bytes // MIB) for consumer in consumers]


def test_processes_are_taken_together_by_what_they_belong_to(tree: Tree) -> None:
    stress_pid = 17
    processes = {
        10: ("ollama", "0::/system.slice/ollama.service"),
        11: ("runner", "0::/system.slice/ollama.service/inner.scope"),
        12: ("python", f"0::/system.slice/docker-{CONTAINER}.scope"),
        13: ("python", f"12:memory:/docker/{CONTAINER}\n1:name=systemd:/docker/{CONTAINER}"),
        14: ("firefox", f"0::{USER_SERVICE}/app.slice/app-firefox.scope"),
        15: ("sshd", "0::/user.slice/user-1000.slice/session-3.scope"),
        16: ("old", "3:cpu:/\n1:name=systemd:/system.slice/old.service"),
        stress_pid: ("stress", "0::/"),
    }
    for pid, (comm, cgroup) in processes.items():
        tree.process(pid, comm, cgroup=cgroup, private_kib=100 * MIB_IN_KIB)
    assert sorted(read(tree)) == [
        ("container", CONTAINER, 2, 200),
        ("process", f"pid {stress_pid} (stress)", 1, 100),
        ("unit", "old.service", 1, 100),
        ("unit", "ollama.service", 2, 200),
        ("unit", "session-3.scope", 1, 100),
        ("user-unit", "app-firefox.scope", 1, 100),
    ]


def test_shared_memory_counts_once_and_the_gpus_counts_too(tree: Tree) -> None:
    pids = (10, 11, 12)
    private_mib, shared_mib, gpu_mib = 32, 8192, 1024
    for pid in pids:
        tree.process(pid, "postgres", cgroup="0::/system.slice/db.service")
        private, shared = f"RssAnon:\t{private_mib * MIB_IN_KIB} kB", f"RssShmem:\t{shared_mib * MIB_IN_KIB} kB"
        tree.file(f"/proc/{pid}/status", f"Uid:\t5\t6\t7\t8\n{private}\n{shared}\n")
    total_mib = len(pids) * private_mib + shared_mib + gpu_mib
    assert read(tree, gpu_bytes={pids[1]: gpu_mib * MIB}) == [("unit", "db.service", 3, total_mib)]


def test_small_processes_of_a_user_count_together(tree: Tree) -> None:
    for pid in range(10, 110):
        tree.process(pid, "small", private_kib=15 * MIB_IN_KIB, uid=1000)
    tree.process(110, "small", private_kib=MIB_IN_KIB, uid=0)
    assert read(tree) == [("small", "small processes", 100, 1500), ("small", "small processes", 1, 1)]


def test_dead_processes_and_the_kernels_own_are_passed_over(tree: Tree) -> None:
    tree.process(11, "dead", state="Z", private_kib=GIB_IN_KIB)
    tree.process(12, "kworker", kernel=True, private_kib=GIB_IN_KIB)
    assert read(tree) == []


def test_a_process_that_ends_during_the_look_is_passed_over(tree: Tree) -> None:
    gone_pid = 10
    tree.process(gone_pid, "gone", private_kib=GIB_IN_KIB)
    tree.path(f"/proc/{gone_pid}/cgroup").unlink()
    assert read(tree) == []


def test_a_process_whose_status_is_no_status_is_passed_over(tree: Tree) -> None:
    odd_pid = 11
    tree.process(odd_pid, "odd", private_kib=GIB_IN_KIB)
    tree.file(f"/proc/{odd_pid}/status", "\0\xff no such thing")
    assert read(tree) == []
