"""The disk's readahead is lowered for a load and restored after it, also by the next agent."""

import os
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.actions import readahead
from sparkd.base.host import Host


@pytest.fixture
def disk(tree: Tree) -> Tree:
    """A model on a partition of nvme0n1, whose disk is 259:0."""
    device = tree.folder("/models/m").stat().st_dev
    block = "/sys/devices/pci0/nvme0n1/nvme0n1p2"
    tree.file("/sys/devices/pci0/nvme0n1/dev", "259:0\n")
    tree.file(f"{block}/partition", "2\n")
    tree.link(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}", f"../..{block.removeprefix('/sys')}")
    tree.file("/sys/devices/virtual/bdi/259:0/read_ahead_kb", "128\n")
    tree.link("/sys/class/bdi/259:0", "../../devices/virtual/bdi/259:0")
    return tree


def read_ahead(tree: Tree) -> str:
    return (tree.root / "sys/devices/virtual/bdi/259:0/read_ahead_kb").read_text().strip()


def test_a_partition_reads_ahead_as_its_disk_does(disk: Tree) -> None:
    assert readahead.find_readahead_setting(Host(disk.root), "/models/m") == "/sys/class/bdi/259:0/read_ahead_kb"


def test_a_file_system_without_a_disk_has_no_such_setting(tree: Tree) -> None:
    tree.folder("/models/m")
    with pytest.raises(FileNotFoundError):
        readahead.find_readahead_setting(Host(tree.root), "/models/m")


def test_readahead_is_lowered_and_restored_also_by_the_next_agent(disk: Tree, tmp_path: Path) -> None:
    host, saved_file = Host(disk.root), tmp_path / "readahead.json"
    change = readahead.lower_readahead(host, "/models/m", 8, saved_file)
    assert change == readahead.ReadaheadChange("/sys/class/bdi/259:0/read_ahead_kb", 128, 8)
    assert read_ahead(disk) == "8"
    assert readahead.restore_readahead(host, saved_file) == readahead.ReadaheadChange(change.path, 8, 128)
    assert read_ahead(disk) == "128"
    assert not saved_file.exists()
    assert readahead.restore_readahead(host, saved_file) is None


@pytest.mark.parametrize("kib", [4, 8, 16, 128])
def test_a_value_lowered_by_a_killed_agent_is_not_taken_for_the_disks_own(disk: Tree, tmp_path: Path, kib: int) -> None:
    host, saved_file = Host(disk.root), tmp_path / "readahead.json"
    readahead.lower_readahead(host, "/models/m", 8, saved_file)
    readahead.lower_readahead(host, "/models/m", kib, saved_file)
    assert read_ahead(disk) == str(kib)
    readahead.restore_readahead(host, saved_file)
    assert read_ahead(disk) == "128"


def test_a_disk_that_no_longer_has_the_model_gets_its_own_value_back(disk: Tree, tmp_path: Path) -> None:
    host, saved_file = Host(disk.root), tmp_path / "readahead.json"
    disk.file("/sys/devices/virtual/bdi/7:1/read_ahead_kb", "8\n")
    disk.link("/sys/class/bdi/7:1", "../../devices/virtual/bdi/7:1")
    saved_file.write_text('{"path": "/sys/class/bdi/7:1/read_ahead_kb", "before_kib": 512, "after_kib": 8}')
    readahead.lower_readahead(host, "/models/m", 8, saved_file)
    assert (disk.root / "sys/devices/virtual/bdi/7:1/read_ahead_kb").read_text() == "512\n"
    readahead.restore_readahead(host, saved_file)
    assert read_ahead(disk) == "128"


def test_readahead_that_is_low_enough_is_left_alone(disk: Tree, tmp_path: Path) -> None:
    assert readahead.lower_readahead(Host(disk.root), "/models/m", 128, tmp_path / "readahead.json") is None
    assert read_ahead(disk) == "128"


def test_readahead_that_somebody_else_set_meanwhile_stays(disk: Tree, tmp_path: Path) -> None:
    host, saved_file = Host(disk.root), tmp_path / "readahead.json"
    readahead.lower_readahead(host, "/models/m", 8, saved_file)
    disk.file("/sys/devices/virtual/bdi/259:0/read_ahead_kb", "4096\n")
    assert readahead.restore_readahead(host, saved_file) is None
    assert read_ahead(disk) == "4096"
    assert not saved_file.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"path": "/etc/passwd", "before_kib": 1, "after_kib": 8}',
     '{"path": "/sys/class/bdi/../../../etc/passwd", "before_kib": 1, "after_kib": 8}',
     '{"path": "/sys/class/bdi/259:0/read_ahead_kb", "before_kib": "x", "after_kib": 8}'],
)  # fmt: skip
def test_an_invalid_state_file_changes_nothing(disk: Tree, tmp_path: Path, text: str) -> None:
    saved_file, other_file = tmp_path / "readahead.json", disk.file("/etc/passwd", "8\n")
    saved_file.write_text(text)
    assert readahead.restore_readahead(Host(disk.root), saved_file) is None
    assert read_ahead(disk) == "128"
    assert other_file.read_text() == "8\n"
    assert saved_file.read_text() == text
