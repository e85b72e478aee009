"""Kernel settings of the recipe, and those known to break engines."""

import os

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.kernel import KernelSettings, Setting, SettingsFacts
from sparkd.base.host import Host, kernel
from sparkd.base.host.files import Files

GIB = 1 << 30
USUAL = SettingsFacts((), 90112 * 1024, 0, 4194304, 0)
CHECK = KernelSettings(plan())
WATCHDOG = "/sys/class/watchdog/watchdog0"


def wanted(*settings: Setting) -> SettingsFacts:
    return replace(USUAL, wanted=settings)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(USUAL, Level.OK, "wants none", id="as Ubuntu sets them"),
        pytest.param(replace(USUAL, reserved_bytes=8 * GIB), Level.OK, "", id="much kept free"),
        pytest.param(replace(USUAL, reserved_bytes=8 * GIB + 1), Level.WARN, "vm.min_free_kbytes", id="too much"),
        pytest.param(replace(USUAL, overcommit=1), Level.OK, "", id="always overcommitted"),
        pytest.param(replace(USUAL, pid_max=8191), Level.WARN, "kernel.pid_max=8191", id="few threads"),
        pytest.param(replace(USUAL, pid_max=32768), Level.OK, "", id="the smallest default"),
        pytest.param(replace(USUAL, huge_pages_bytes=64 * GIB), Level.WARN, "vm.nr_hugepages=0", id="huge pages"),
        pytest.param(wanted(Setting("vm.swappiness", "10", "10")), Level.OK, "the 1 that", id="as wanted"),
        pytest.param(
            wanted(Setting("vm.a", "1", "0"), Setting("vm.b", "1", None)),
            Level.WARN,
            "vm.b: this kernel has no such setting, the recipe wants 1; vm.a is 0, the recipe wants 1 take",
            id="one that can't be applied comes first",
        ),
    ],
)
def test_a_setting_that_differs_or_harms_is_warned_of(facts: SettingsFacts, level: Level, words: str) -> None:
    expect(CHECK.judge(facts), level, text=words)


def test_probe_reads_what_the_recipe_names_and_what_may_harm(tree: Tree) -> None:
    tree.file("/proc/sys/vm/min_free_kbytes", "1024\n")
    tree.file("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1, Hugetlb=2)
    wanted = (("net.ipv4.tcp_rmem", "4096 131072 6291456"), ("vm.swappiness", "10"))
    assert KernelSettings(replace(plan(), sysctls=wanted)).probe(Host(tree.root)) == SettingsFacts(
        wanted=(
            Setting("net.ipv4.tcp_rmem", "4096 131072 6291456", "4096 131072 6291456"),
            Setting("vm.swappiness", "10", None),
        ),
        reserved_bytes=1 << 20,
        overcommit=0,
        pid_max=8192,
        huge_pages_bytes=2 * GIB,
    )


def test_a_file_that_can_only_be_written_is_no_setting() -> None:
    """Of the real kernel: not even root may read it."""
    name = "vm.compact_memory"
    assert os.stat(kernel.sysctl_path(name)).st_mode & 0o777 == 0o200
    assert kernel.read_sysctl(Files(), name) is None


@pytest.mark.parametrize(
    ("tree_files", "text"),
    [
        ({}, "stays down; no watchdog"),
        ({"/proc/sys/kernel/panic": "30\n"}, "reboots; no watchdog"),
        ({"/proc/sys/kernel/panic": "-1\n"}, "reboots; no watchdog"),
        ({"/proc/sys/kernel/panic": "0\n"}, "stays down; no watchdog"),
        ({"/dev/watchdog0": ""}, "stays down; watchdog watchdog0 may be in use"),
        (
            {f"{WATCHDOG}/identity": "SBSA\x1b Watchdog\n", f"{WATCHDOG}/state": "inactive\n"},
            "stays down; watchdog SBSA\\x1b Watchdog is not in use",
        ),
        (
            {"/proc/sys/kernel/panic": "5", f"{WATCHDOG}/identity": "i6300\n", f"{WATCHDOG}/state": "active\n"},
            "reboots; watchdog i6300 is active",
        ),
    ],
)
def test_what_the_machine_does_once_its_kernel_works_no_more(tree: Tree, tree_files: dict[str, str], text: str) -> None:
    for path, content in tree_files.items():
        tree.file(path, content)
    tree.meminfo(MemTotal=120, MemFree=1, MemAvailable=1)
    assert CHECK.run(Host(tree.root))[1].reason.endswith(f"after a panic the machine {text}")
