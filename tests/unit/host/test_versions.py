"""Versions of a node and the facts of its boot, by the files of its kernel."""

from tests.tree import Tree

from sparkd import __version__
from sparkd.base.host import Host
from sparkd.base.host.versions import LIMIT, read_boot, read_versions


def test_versions_are_read_from_the_kernels_files(tree: Tree) -> None:
    tree.file(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build\n",
    )
    tree.file("/proc/sys/kernel/osrelease", "6.17.0-1008-nvidia\n")
    assert read_versions(Host(tree.root)) == {
        "sparkd": __version__,
        "driver": "580.159.04",
        "kernel": "6.17.0-1008-nvidia",
    }
    tree.file("/proc/driver/nvidia/version", "rubbish")
    assert "driver" not in read_versions(Host(tree.root))


def test_an_unknown_version_is_left_out_and_text_is_sanitized(tree: Tree) -> None:
    tree.file("/proc/sys/kernel/osrelease", "6\x1b[2J" + "x" * 500)
    known = read_versions(Host(tree.root))
    assert set(known) == {"sparkd", "kernel"}
    assert known["kernel"].startswith("6\\x1b[2Jxx")
    assert len(known["kernel"]) == LIMIT


def test_the_boot_is_read_without_what_names_the_kernels_place(tree: Tree) -> None:
    tree.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz-6.17 root=/dev/a quiet\x1b initrd=/x\n")
    tree.meminfo(MemTotal=119.5, MemFree=1, MemAvailable=1)
    tree.file("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swap.img\tfile\t16777216\t0\t-2\n")
    tree.file("/proc/sys/vm/swappiness", "10\n")
    assert read_boot(Host(tree.root), ("vm.swappiness", "vm.none")) == {
        "boot.command_line": "root=/dev/a quiet\\x1b",
        "boot.memory": "119.5 GiB",
        "boot.swap": "/swap.img 16.0 GiB",
        "sysctl.vm.swappiness": "10",
    }


def test_a_boot_without_facts_is_no_error(tree: Tree) -> None:
    tree.file("/proc/swaps", "Filename\nrubbish\n")
    assert read_boot(Host(tree.root), ()) == {}
