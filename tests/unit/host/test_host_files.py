"""Reads below a root: symlinks stay inside, and no device and no FIFO is waited for."""

import os
from functools import partial
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.host.files import Files, Kind
from sparkd.base.host.safetensors import find_fault


def files(tree: Tree) -> Files:
    return Files(str(tree.root))


def test_bytes_that_are_no_utf8_read_as_escapes(tree: Tree) -> None:
    tree.file("/x").write_bytes(b"a\xff")
    assert files(tree).text("/x") == "a\\xff"


def test_a_file_above_the_limit_is_refused(tree: Tree) -> None:
    tree.file("/x", "12345")
    assert files(tree).bytes("/x", limit=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        files(tree).bytes("/x", limit=4)


@pytest.mark.parametrize("target", ["/etc/real", "../etc/real", "/../../../../etc/real", "../../../../../etc/real"])
def test_a_symlink_is_followed_inside_the_root_and_never_out_of_it(tree: Tree, target: str) -> None:
    tree.file("/etc/real", "inside")
    tree.link("/a/link", target)
    assert files(tree).text("/a/link") == "inside"


def test_a_symlinked_folder_in_the_middle_stays_inside_too(tree: Tree) -> None:
    tree.file("/usr/lib/x", "inside")
    tree.link("/lib", "usr/lib")
    assert files(tree).text("/lib/x") == "inside"
    assert files(tree).names("/lib") == ("x",)


def test_a_circle_of_symlinks_ends(tree: Tree) -> None:
    tree.link("/a", "/b")
    tree.link("/b", "/a")
    with pytest.raises(OSError, match="symbolic links"):
        files(tree).text("/a")


def test_a_fifo_where_a_file_is_expected_does_not_hang(tree: Tree) -> None:
    tree.folder("/run")
    os.mkfifo(tree.root / "run/fifo")
    assert files(tree).text("/run/fifo") == ""


def test_a_device_is_not_opened_whatever_link_leads_to_it(tmp_path: Path) -> None:
    """To open a watchdog, whatever for, has the machine reset itself a minute later."""
    link = tmp_path / "model.safetensors"
    link.symlink_to("/dev/ptmx")
    for read in (Files().text, partial(find_fault, Files()), lambda path: list(Files().chunks(path))):
        with pytest.raises(OSError, match="is a device"):
            read(str(link))
    with pytest.raises(OSError, match="symbolic links"):
        Files().itself(str(link), 1)
    assert Files().text("/dev/null") == "", "masked units are links to it"


def test_of_the_devices_of_memory_only_those_that_are_needed_are_opened(tmp_path: Path) -> None:
    """Beside /dev/null there lie /dev/mem and /dev/port, and a read of the latter may end a kernel."""
    link = tmp_path / "config.json"
    link.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="is a device"):
        Files().head(str(link), 1)


@pytest.mark.parametrize("way", ["/proc/self/root", "/proc/thread-self/root", "/proc/self/task/../root", "/sys/.."])
def test_no_way_through_proc_leads_to_a_device(way: str) -> None:
    with pytest.raises(OSError, match="is a device"):
        Files().head(f"{way}/dev/zero", 1)
    assert Files().text("/proc/self/comm")


def test_stat_has_kind_and_permissions(tree: Tree) -> None:
    tree.file("/bin/tool", "#!", mode=0o755)
    facts = files(tree).stat("/bin/tool")
    assert facts.kind is Kind.FILE
    assert facts.executable
    assert not facts.writable_by_others
    assert files(tree).stat("/bin").kind is Kind.FOLDER


def test_a_dangling_symlink_does_not_exist(tree: Tree) -> None:
    tree.link("/a", "/missing")
    assert not files(tree).exists("/a")
    assert files(tree).link("/a") == "/missing"
