"""Who holds the memory that the plan needs, by name, and how to stop them."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.memory_users import HeldMemory, OtherTenants, TenantFacts
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, ContainerFacts, DockerFacts
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed

MIB_IN_KIB = 1 << 10
GIB_IN_KIB = 1 << 20
NEED = MemoryNeed(memory_bytes=98 * GIB, gpu_memory_utilization=None, headroom_bytes=2 * GIB)
SHARE = MemoryNeed(memory_bytes=None, gpu_memory_utilization=0.9, headroom_bytes=0)
OLLAMA = HeldMemory(name="ollama.service", bytes=20 * GIB, stop="sudo systemctl stop ollama.service")
STOP_OLLAMA = "stop what you can spare: sudo systemctl stop ollama.service"
SHORT = TenantFacts(
    total_bytes=120 * GIB,
    available_bytes=80 * GIB,
    gpu_total_bytes=None,
    held=(OLLAMA,),
    held_bytes=20 * GIB,
    others=0,
)
CONTAINER = "ab" * 32
USER_SLICE = "/user.slice/user-1000.slice"


@pytest.fixture
def machine(tree: Tree) -> Tree:
    """A machine with 60 GiB available."""
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=60)
    return tree


@pytest.mark.parametrize(
    ("facts", "level", "words", "hint"),
    [
        pytest.param(SHORT, Level.WARN, "20.0 GiB; 80.0 GiB available, 100.0 GiB needed", STOP_OLLAMA, id="short"),
        pytest.param(replace(SHORT, available_bytes=100 * GIB), Level.OK, "ollama.service 20.0 GiB", "", id="enough"),
        pytest.param(replace(SHORT, held=(), held_bytes=0), Level.OK, "nobody", "", id="nobody has it"),
        pytest.param(replace(SHORT, others=3), Level.WARN, "and 3 more", STOP_OLLAMA, id="many"),
    ],
)
def test_those_who_hold_what_the_plan_needs_are_named(facts: TenantFacts, level: Level, words: str, hint: str) -> None:
    expect(OtherTenants(NEED).judge(facts), level, words, hint=hint)


def test_what_a_gpu_has_of_its_own_is_none_of_the_machines() -> None:
    check = OtherTenants(SHARE)
    assert check.judge(replace(SHORT, gpu_total_bytes=800 * GIB)).level is Level.OK
    assert check.judge(SHORT).level is Level.WARN


def test_probe_names_the_largest_five_and_how_to_stop_them(machine: Tree) -> None:
    machine.file("/etc/passwd", "spark:x:1000:1000::/home/spark:/bin/bash\n")
    machine.file("/dev/nvidia0")
    ollama_pid, root_pid = 10, 11
    for pid, uid, gib, group in (
        (ollama_pid, 0, 0, "/system.slice/ollama.service"),
        (root_pid, 0, 7, "/"),
        (12, 1000, 6, f"{USER_SLICE}/session-3.scope"),
        (13, 1000, 5, f"{USER_SLICE}/user@1000.service/app.slice/firefox.scope"),
        (14, 0, 4, "/system.slice/fifth.service"),
        (15, 0, 3, "/system.slice/sixth.service"),
        (16, 0, 1, "/system.slice/small.service"),
    ):
        machine.process(pid, "x", cgroup=f"0::{group}", private_kib=gib * GIB_IN_KIB, uid=uid)
    driver_list = (
        GpuProcess(ollama_pid, used_bytes=20 * GIB),
        GpuProcess(99, used_bytes=GIB),  # it has ended
        GpuProcess(1, used_bytes=None),
    )
    gpu = GpuFacts(names=("NVIDIA GB10",), total_bytes=None, processes=driver_list)
    facts = OtherTenants(NEED).probe(Host(machine.root, gpu=lambda: gpu))
    assert facts.held == (
        OLLAMA,
        HeldMemory(f"pid {root_pid} (x) of uid 0", 7 * GIB, f"sudo kill {root_pid}"),
        HeldMemory("session-3.scope of spark", 6 * GIB, "sudo kill 12"),
        HeldMemory("firefox.scope of spark", 5 * GIB, "sudo systemctl --user -M spark@ stop firefox.scope"),
        HeldMemory("fifth.service", 4 * GIB, "sudo systemctl stop fifth.service"),
    )
    assert facts.others == 1
    assert facts.held_bytes == 45 * GIB
    assert facts.available_bytes == 60 * GIB


def test_no_command_ends_the_desktop_of_who_pastes_it(machine: Tree) -> None:
    shell = f"0::{USER_SLICE}/user@1000.service/session.slice/org.gnome.Shell@wayland.service"
    machine.file("/etc/passwd", "spark:x:1000:1000::/home/spark:/bin/bash\n")
    machine.process(10, "gnome-shell", cgroup=shell, private_kib=3 * GIB_IN_KIB, uid=1000)
    (held,) = OtherTenants(NEED).probe(Host(machine.root)).held
    assert (held.name, held.stop) == ("org.gnome.Shell@wayland.service of spark", "log out of the desktop of spark")


def test_docker_stops_the_containers_that_it_has_and_others_end_with_their_process(machine: Tree) -> None:
    """Others are podman's, perhaps."""
    machine.process(10, "x", cgroup=f"0::/system.slice/docker-{CONTAINER}.scope", private_kib=3 * GIB_IN_KIB)
    notebook = ContainerFacts(CONTAINER, "notebook", (), True, 10, "sha256:1", "no")
    known = Host(machine.root, docker=lambda: DockerFacts(running=True, containers=(notebook,)))
    held = HeldMemory("container notebook", 3 * GIB, "sudo docker stop notebook")
    assert OtherTenants(NEED).probe(known).held == (held,)
    unknown = Host(machine.root, docker=lambda: DockerFacts(running=True, containers=()))
    held = HeldMemory(f"container {CONTAINER[:12]}", 3 * GIB, "sudo kill 10")
    assert OtherTenants(NEED).probe(unknown).held == (held,)


@pytest.mark.parametrize("scope", ["vte-spawn-0a1b2c3d.scope", "tmux-spawn-0a1b2c3d.scope"])
def test_the_shell_beside_a_large_program_is_not_stopped(machine: Tree, scope: str) -> None:
    group = f"0::{USER_SLICE}/user@1000.service/app.slice/{scope}"
    machine.process(10, "python3", cgroup=group, private_kib=5 * GIB_IN_KIB, uid=1000)
    facts = OtherTenants(NEED).probe(Host(machine.root, docker=lambda: AWAY))
    assert facts.held == (HeldMemory(f"{scope} of uid 1000", 5 * GIB, "sudo kill 10"),)


@pytest.mark.parametrize(
    ("unit", "stop"),
    [
        ("session-c1.scope", "sudo kill 20; it is the largest of 2 processes"),
        ("run-u77.scope", "sudo systemctl stop run-u77.scope"),
        ("machine-qemu-1-spark.scope", "sudo systemctl stop machine-qemu-1-spark.scope"),
        ("session-store.service", "sudo systemctl stop session-store.service"),
    ],
)
def test_a_unit_of_several_processes_is_stopped_unless_it_has_a_login(machine: Tree, unit: str, stop: str) -> None:
    for pid, gib in ((20, 4), (21, 3)):
        machine.process(pid, "x", cgroup=f"0::/system.slice/{unit}", private_kib=gib * GIB_IN_KIB, uid=1000)
    facts = OtherTenants(NEED).probe(Host(machine.root, docker=lambda: AWAY))
    assert [(held.bytes, held.stop) for held in facts.held] == [(7 * GIB, stop)]


def test_a_user_of_a_directory_in_the_network_is_named_by_his_number(machine: Tree) -> None:
    group = f"0::{USER_SLICE}/user@1000.service/app.slice/firefox.scope"
    machine.process(10, "firefox", cgroup=group, private_kib=5 * GIB_IN_KIB, uid=1000)
    stop = "sudo systemctl --user -M 1000@ stop firefox.scope"
    facts = OtherTenants(NEED).probe(Host(machine.root, docker=lambda: AWAY))
    assert facts.held == (HeldMemory("firefox.scope of uid 1000", 5 * GIB, stop),)


def test_small_processes_are_named_together_with_the_command_that_lists_them(machine: Tree) -> None:
    for pid in range(10, 110):
        machine.process(pid, "small", private_kib=15 * MIB_IN_KIB, uid=1000)
    machine.process(110, "small", private_kib=MIB_IN_KIB, uid=0)
    facts = OtherTenants(NEED).probe(Host(machine.root, docker=lambda: AWAY))
    assert [(held.name, held.stop) for held in facts.held] == [("100 small processes of uid 1000", "ps -u 1000")]


@pytest.mark.parametrize(
    ("group", "is_read"), [("/system.slice/some.service", False), (f"/system.slice/docker-{CONTAINER}.scope", True)]
)
def test_docker_is_read_only_where_a_container_holds_much(machine: Tree, group: str, is_read: bool) -> None:
    calls = []

    def docker() -> DockerFacts:
        calls.append(True)
        return AWAY

    machine.process(10, "x", cgroup=f"0::{group}", private_kib=2 * GIB_IN_KIB)
    OtherTenants(NEED).probe(Host(machine.root, docker=docker))
    assert bool(calls) is is_read
