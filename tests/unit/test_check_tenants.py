"""Who else holds memory: by unit, container or process, and when it matters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.host import Host, tenants
from sparkd.host.docker_facts import AWAY, ContainerFacts, DockerFacts
from sparkd.host.gpu import GpuFacts, GpuProcess
from sparkd.preflight.check import Level
from sparkd.preflight.need import MemoryNeed
from sparkd.preflight.tenants import Held, OtherTenants, TenantFacts

GIB = 1 << 30
MIB_IN_KIB = 1 << 10
GIB_IN_KIB = 1 << 20
NEED = MemoryNeed(98 * GIB, None, 2 * GIB)
OLLAMA = Held("ollama.service", 20 * GIB, "systemctl stop ollama.service")
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
    assert verdict.level is level
    assert words in verdict.reason
    assert verdict.hint == ("stop what you can spare: systemctl stop ollama.service" if level is Level.WARN else "")


def test_what_a_gpu_has_of_its_own_is_none_of_the_machines() -> None:
    check = OtherTenants(MemoryNeed(None, 0.9, 0))
    assert check.judge(replace(SHORT, gpu_total_bytes=800 * GIB)).level is Level.OK
    assert check.judge(SHORT).level is Level.WARN


def read(tree: Tree, gpu_bytes: dict[int, int] | None = None) -> list[tuple[str, str, int, int]]:
    host = Host(tree.root)
    found = tenants.read(host.files, host.processes(), gpu_bytes or {})
    return [(one.kind, one.name, one.processes, one.bytes >> 20) for one in found]


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


def test_the_small_the_dead_and_the_kernels_own_are_passed_over(tree: Tree) -> None:
    tree.process(10, "small", private_kib=15 * MIB_IN_KIB)
    tree.process(11, "dead", state="Z", private_kib=GIB_IN_KIB)
    tree.process(12, "kworker", kernel=True, private_kib=GIB_IN_KIB)
    assert read(tree) == []


def test_who_ends_meanwhile_is_passed_over(tree: Tree) -> None:
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
    assert [(one.name, one.stop, one.bytes // GIB) for one in facts.held] == [
        ("ollama.service", "systemctl stop ollama.service", 20),
        ("pid 14 (x)", "kill 14", 7),
        ("session-3.scope of spark", "systemctl stop session-3.scope", 6),
        ("firefox.scope of spark", "systemctl --user -M spark@ stop firefox.scope", 5),
        (f"container {CONTAINER[::-1][:12]}", f"docker stop {CONTAINER[::-1][:12]}", 4),
    ]
    assert (facts.others, facts.held_bytes, facts.available_bytes) == (1, 45 * GIB, 60 * GIB)


def test_docker_is_asked_only_where_a_container_holds_much(tree: Tree) -> None:
    asked = []

    def docker() -> DockerFacts:
        asked.append(True)
        return AWAY

    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=60)
    tree.process(10, "x", private_kib=2 * GIB_IN_KIB)
    OtherTenants(NEED).probe(Host(tree.root, docker=docker))
    assert not asked
    tree.process(11, "x", cgroup=f"0::/system.slice/docker-{CONTAINER}.scope", private_kib=2 * GIB_IN_KIB)
    OtherTenants(NEED).probe(Host(tree.root, docker=docker))
    assert asked
