"""Who holds memory by name, and memory that nobody seems to have."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect, never_queried

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.memory_users import (
    HeldFacts,
    HeldMemory,
    OtherTenants,
    TenantFacts,
    UnaccountedMemory,
)
from sparkd.agent.preflight.gpu_users import GpuUser
from sparkd.base.host import Host
from sparkd.base.host.consumers import read_consumers
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed

MIB_IN_KIB = 1 << 10
GIB_IN_KIB = 1 << 20
NEED = MemoryNeed(98 * GIB, None, 2 * GIB)
OLLAMA = HeldMemory("ollama.service", 20 * GIB, "sudo systemctl stop ollama.service")
SHORT = TenantFacts(120 * GIB, 80 * GIB, None, (OLLAMA,), 20 * GIB, 0)
CONTAINER = "ab" * 32


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(SHORT, Level.WARN, "ollama.service 20.0 GiB; 80.0 GiB available, 100.0 GiB needed", id="short"),
        pytest.param(replace(SHORT, available_bytes=100 * GIB), Level.OK, "ollama.service 20.0 GiB", id="enough left"),
        pytest.param(replace(SHORT, held=(), held_bytes=0), Level.OK, "nobody", id="nobody has it"),
        pytest.param(replace(SHORT, others=3), Level.WARN, "and 3 more", id="many"),
    ],
)
def test_those_who_hold_what_the_plan_needs_are_named(facts: TenantFacts, level: Level, words: str) -> None:
    verdict = OtherTenants(NEED).judge(facts)
    expect(verdict, level, words)
    assert verdict.hint == (
        "stop what you can spare: sudo systemctl stop ollama.service" if level is Level.WARN else ""
    )


def test_what_a_gpu_has_of_its_own_is_none_of_the_machines() -> None:
    check = OtherTenants(MemoryNeed(None, 0.9, 0))
    assert check.judge(replace(SHORT, gpu_total_bytes=800 * GIB)).level is Level.OK
    assert check.judge(SHORT).level is Level.WARN


def read(tree: Tree, gpu_bytes: dict[int, int] | None = None) -> list[tuple[str, str, int, int]]:
    """Kind, name, number of processes and MiB of each consumer."""
    host = Host(tree.root)
    consumers = read_consumers(host.files, host.processes(), gpu_bytes or {})
    return [(consumer.kind, consumer.name, consumer.processes, consumer.bytes >> 20) for consumer in consumers]


def test_processes_are_taken_together_by_what_they_belong_to(tree: Tree) -> None:
    user = "/user.slice/user-1000.slice/user@1000.service"
    for pid, (comm, cgroup) in enumerate(
        [
            ("ollama", "0::/system.slice/ollama.service"),
            ("runner", "0::/system.slice/ollama.service/inner.scope"),
            ("python", f"0::/system.slice/docker-{CONTAINER}.scope"),
            ("python", f"12:memory:/docker/{CONTAINER}\n1:name=systemd:/docker/{CONTAINER}"),
            ("firefox", f"0::{user}/app.slice/app-firefox.scope"),
            ("sshd", "0::/user.slice/user-1000.slice/session-3.scope"),
            ("old", "3:cpu:/\n1:name=systemd:/system.slice/old.service"),
            ("stress", "0::/"),
        ],
        start=10,
    ):
        tree.process(pid, comm, cgroup=cgroup, private_kib=100 * MIB_IN_KIB)
    assert sorted(read(tree)) == [
        ("container", CONTAINER, 2, 200),
        ("process", "pid 17 (stress)", 1, 100),
        ("unit", "old.service", 1, 100),
        ("unit", "ollama.service", 2, 200),
        ("unit", "session-3.scope", 1, 100),
        ("user-unit", "app-firefox.scope", 1, 100),
    ]


def test_shared_memory_counts_once_and_the_gpus_counts_too(tree: Tree) -> None:
    for pid in (10, 11, 12):
        tree.process(pid, "postgres", cgroup="0::/system.slice/db.service")
        tree.file(f"/proc/{pid}/status", f"Uid:\t5\t6\t7\t8\nRssAnon:\t{32 << 10} kB\nRssShmem:\t{8 << 20} kB\n")
    assert read(tree, {11: GIB}) == [("unit", "db.service", 3, 3 * 32 + 8192 + 1024)]


def test_small_processes_of_a_user_count_together(tree: Tree) -> None:
    for pid in range(10, 110):
        tree.process(pid, "small", private_kib=15 * MIB_IN_KIB, uid=1000)
    tree.process(110, "small", private_kib=MIB_IN_KIB)
    assert read(tree) == [("small", "small processes", 100, 1500), ("small", "small processes", 1, 1)]
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=60)
    facts = OtherTenants(NEED).probe(Host(tree.root, docker=lambda: AWAY))
    assert [(held.name, held.stop) for held in facts.held] == [("100 small processes of uid 1000", "ps -u 1000")]


def test_dead_processes_and_the_kernels_own_are_passed_over(tree: Tree) -> None:
    tree.process(11, "dead", state="Z", private_kib=GIB_IN_KIB)
    tree.process(12, "kworker", kernel=True, private_kib=GIB_IN_KIB)
    assert read(tree) == []


def test_a_process_that_ends_during_the_look_is_passed_over(tree: Tree) -> None:
    tree.process(10, "gone", private_kib=GIB_IN_KIB)
    (tree.root / "proc/10/cgroup").unlink()
    tree.process(11, "odd", private_kib=GIB_IN_KIB)
    tree.file("/proc/11/status", "\0\xff no such thing")
    assert read(tree) == []


def test_probe_names_the_largest_five_and_how_to_stop_them(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=60)
    tree.file("/etc/passwd", "spark:x:1000:1000::/home/spark:/bin/bash\n")
    tree.file("/dev/nvidia0")
    user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/firefox.scope"
    for pid, (cgroup, gib) in enumerate(
        [
            (f"0::/system.slice/docker-{CONTAINER}.scope", 3),
            (f"0::/system.slice/docker-{CONTAINER[::-1]}.scope", 4),
            (user, 5),
            ("0::/user.slice/user-1000.slice/session-3.scope", 6),
            ("0::/", 7),
            ("0::/system.slice/ollama.service", 0),
            ("0::/system.slice/small.service", 1),
        ],
        start=10,
    ):
        tree.process(pid, "x", cgroup=cgroup, private_kib=gib * GIB_IN_KIB)
    for pid in (12, 13):
        status = tree.root / f"proc/{pid}/status"
        status.write_text(status.read_text().replace("Uid:\t0\t0", "Uid:\t1000\t1000"))
    box = ContainerFacts(CONTAINER, "notebook", (), True, 10, "sha256:1", "no")
    host = Host(
        tree.root,
        docker=lambda: DockerFacts(running=True, containers=(box,)),
        gpu=lambda: GpuFacts(
            ("NVIDIA GB10",), None, (GpuProcess(15, 20 * GIB), GpuProcess(99, GIB), GpuProcess(1, None))
        ),
    )
    facts = OtherTenants(NEED).probe(host)
    assert [(held.name, held.stop, held.bytes // GIB) for held in facts.held] == [
        ("ollama.service", "sudo systemctl stop ollama.service", 20),
        ("pid 14 (x) of uid 0", "sudo kill 14", 7),
        ("session-3.scope of spark", "sudo systemctl stop session-3.scope", 6),
        ("firefox.scope of spark", "sudo systemctl --user -M spark@ stop firefox.scope", 5),
        (f"container {CONTAINER[::-1][:12]}", "sudo kill 11", 4),  # docker has none of that id: podman's, perhaps
    ]
    assert (facts.others, facts.held_bytes, facts.available_bytes) == (1, 45 * GIB, 60 * GIB)
    (tree.root / "etc/passwd").unlink()  # as of a user of a directory in the network
    assert OtherTenants(NEED).probe(host).held[3].stop == "sudo systemctl --user -M 1000@ stop firefox.scope"


def test_docker_is_read_only_where_a_container_holds_much(tree: Tree) -> None:
    calls = []

    def docker() -> DockerFacts:
        calls.append(True)
        return AWAY

    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=60)
    tree.process(10, "x", private_kib=2 * GIB_IN_KIB)
    OtherTenants(NEED).probe(Host(tree.root, docker=docker))
    assert not calls
    tree.process(11, "x", cgroup=f"0::/system.slice/docker-{CONTAINER}.scope", private_kib=2 * GIB_IN_KIB)
    OtherTenants(NEED).probe(Host(tree.root, docker=docker))
    assert calls


GB10 = GpuFacts(("NVIDIA GB10",), None, ())
STUCK = HeldFacts(True, 120 * GIB, 100 * GIB, ())
PYTHON = GpuUser(7, "python", 10 * GIB)
SILENT = GpuUser(7, "gnome-shell", None)
"""Listed, without a size."""
IDLE = GpuUser(8, "dcgm-exporter", 0)
"""Not listed: it only has the devices open."""


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(STUCK, Level.WARN, "100.0 GiB that belongs to no process", id="the driver keeps it"),
        pytest.param(replace(STUCK, unexplained_bytes=4 * GIB), Level.OK, "4.0 GiB are held", id="the driver's own"),
        pytest.param(HeldFacts(True, 16 * GIB, 4 * GIB, ()), Level.OK, "4.0 GiB", id="a small machine"),
        pytest.param(HeldFacts(True, 16 * GIB, 5 * GIB, ()), Level.WARN, "5.0 GiB", id="much of a small machine"),
        pytest.param(replace(STUCK, holders=(SILENT,)), Level.OK, "gnome-shell", id="somebody may have it"),
        pytest.param(
            replace(STUCK, holders=(IDLE,)), Level.WARN, "100.0 GiB that belongs to no process", id="only looks on"
        ),
        pytest.param(replace(STUCK, holders=None), Level.WARN, "users are unknown", id="users unknown"),
        pytest.param(
            replace(STUCK, holders=(GpuUser(7, "python", 99 * GIB),)), Level.OK, "99.0 GiB of it", id="reported"
        ),
        pytest.param(replace(STUCK, holders=(PYTHON,)), Level.WARN, "90.0 GiB that belongs to no process, but"),
        pytest.param(replace(STUCK, holders=(PYTHON,)), Level.WARN, "but pid 7 (python) with 10.0 GiB"),
        pytest.param(HeldFacts(shares_memory=False), Level.OK, "no GPU", id="no GPU, or one with memory of its own"),
        pytest.param(HeldFacts(False, gpu_error="no answer"), Level.SKIPPED, "no answer", id="unified-memory says it"),
    ],
)
def test_memory_that_no_process_has_is_warned_of(facts: HeldFacts, level: Level, words: str) -> None:
    verdict = UnaccountedMemory().judge(facts)
    expect(verdict, level, words)
    assert ("reboot" in verdict.hint) == (level is Level.WARN and facts.holders is not None)


def test_a_process_that_has_the_devices_open_is_to_end_before_a_reboot_and_has_no_part_in_the_sum() -> None:
    verdict = UnaccountedMemory().judge(replace(STUCK, holders=(PYTHON, IDLE)))
    assert verdict.reason.endswith("belongs to no process, but pid 7 (python) with 10.0 GiB")
    who = "pid 7 (python), pid 8 (dcgm-exporter)"
    assert verdict.hint == f"if it stays once {who} have ended, a reboot gives it back: sudo systemctl reboot"


def machine(tree: Tree, **gib: float) -> None:
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=12, AnonPages=2, Cached=8, **gib)


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"Hugetlb": 100}, id="huge pages"),
        pytest.param({"Balloon": 100}, id="a balloon"),
        pytest.param({"Zswap": 100}, id="compressed swap"),
        pytest.param({"CmaTotal": 100, "CmaFree": 0}, id="the contiguous area"),
        pytest.param({"Percpu": 50, "VmallocUsed": 50}, id="the kernel's own"),
    ],
)
def test_memory_that_a_counter_explains_is_not_called_unexplained(tree: Tree, elsewhere: dict[str, float]) -> None:
    machine(tree, **elsewhere)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)) == HeldFacts(True, 120 * GIB, 0, ())


def test_more_free_than_the_contiguous_area_has_explains_nothing(tree: Tree) -> None:
    machine(tree, CmaTotal=1, CmaFree=9)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == 100 * GIB


def test_the_cache_of_zfs_is_known(tree: Tree) -> None:
    machine(tree)
    rows = "13 1 0x01 147 39984 8893 1234\nname                            type data\n"
    tree.file("/proc/spl/kstat/zfs/arcstats", f"{rows}hits 4 12\nsize                            4    {99 * GIB}\n")
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == GIB


def test_probe_names_who_uses_the_gpu_and_what_the_driver_says_they_have(tree: Tree) -> None:
    machine(tree)
    tree.process(7, "python", opened=("/dev/nvidia0",))
    tree.process(9, "Xorg")
    gpu = replace(GB10, processes=(GpuProcess(9, 5 * GIB), GpuProcess(10, 1)))
    facts = UnaccountedMemory().probe(Host(tree.root, gpu=lambda: gpu))
    assert facts.holders == (GpuUser(7, "python", 0), GpuUser(9, "Xorg", 5 * GIB), GpuUser(10, "", 1, gone=True))


def test_a_driver_that_lists_nobody_and_says_so_is_no_answer(tree: Tree) -> None:
    machine(tree)
    facts = UnaccountedMemory().probe(Host(tree.root, gpu=lambda: replace(GB10, processes=None)))
    assert facts.holders is None


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(GpuFacts((), None, ()), id="none"),
        pytest.param(GpuFacts(("NVIDIA H200",), 140 * GIB, ()), id="memory of its own"),
    ],
)
def test_without_a_gpu_that_shares_the_memory_nothing_is_suspected(tree: Tree, gpu: GpuFacts) -> None:
    machine(tree)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: gpu)).shares_memory is False
    assert UnaccountedMemory(uses_gpu=False).probe(Host(tree.root, gpu=never_queried)).shares_memory is False
