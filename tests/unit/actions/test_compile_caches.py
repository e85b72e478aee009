"""Caches of images: the youngest stay, and what is not a cache's is never removed."""

import os
import struct
import subprocess
from pathlib import Path

import pytest

from sparkd.agent.actions.compile_caches import (
    REMOVAL_PREFIX,
    make_cache_folder,
    prune_caches,
    remove_cut,
    remove_cut_kernels,
)

IMAGES = tuple(f"{number:064x}" for number in range(6))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Caches of six images: the first was used last."""
    for age, image in enumerate(IMAGES):
        folder = tmp_path / "cache" / image / "vllm"
        folder.mkdir(parents=True)
        (folder / "kernels.bin").touch()
        os.utime(folder.parent, (1e9 - age, 1e9 - age))
    return tmp_path / "cache"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def prune(root: Path, keep: str = IMAGES[0], *mounted: str) -> list[tuple[str, str]]:
    return list(prune_caches(f"sha256:{keep}", mounted, root))


def test_the_three_that_were_used_last_stay(root: Path) -> None:
    assert prune(root) == [(str(root / image), "") for image in IMAGES[3:]]
    assert names(root) == list(IMAGES[:3])


def test_the_image_in_use_keeps_its_caches_however_old(root: Path) -> None:
    prune(root, IMAGES[5])
    assert names(root) == [*IMAGES[:2], IMAGES[5]]


def test_an_interrupted_removal_is_completed_and_is_not_counted_as_kept(root: Path) -> None:
    """A removal inside a folder makes it look young: it must be neither kept for that nor used again."""
    walk = prune_caches(IMAGES[0], (), root)
    next(walk)
    (root / IMAGES[4]).rename(root / f"{REMOVAL_PREFIX}{IMAGES[4]}")  # interrupted here
    assert prune(root) == [(str(root / f"{REMOVAL_PREFIX}{IMAGES[4]}"), ""), (str(root / IMAGES[5]), "")]
    assert names(root) == list(IMAGES[:3])


def test_a_mount_inside_a_cache_is_left_alone(root: Path) -> None:
    mounted = str(root / IMAGES[4] / "vllm")
    pruned = prune(root, IMAGES[0], "/", str(root), mounted)
    assert (str(root / IMAGES[4]), "something is mounted in it") in pruned
    assert names(root) == [*IMAGES[:3], IMAGES[4]]
    assert (root / IMAGES[4] / "vllm/kernels.bin").exists()


def test_mounts_are_compared_with_links_resolved(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    list(prune_caches(IMAGES[0], [str(root / IMAGES[4])], tmp_path / "link"))
    assert names(root) == [*IMAGES[:3], IMAGES[4]]


def test_a_folder_that_cannot_be_removed_stops_no_other_removal(root: Path) -> None:
    (root / f"{REMOVAL_PREFIX}{IMAGES[3]}").touch()  # in the way of its new name
    pruned = prune(root)
    assert [path for path, error in pruned if error] == [str(root / IMAGES[3])]
    assert names(root) == [f"{REMOVAL_PREFIX}{IMAGES[3]}", *IMAGES[:4]]


def test_a_removal_that_is_killed_is_no_removal(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may kill it for want of memory: it writes no reason then."""
    program = tmp_path / "programs/rm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert [error for _, error in prune(root)] == ["rm ended with -9"] * 3
    assert names(root) == [*(f"{REMOVAL_PREFIX}{image}" for image in IMAGES[3:]), *IMAGES[:3]]


def make_deep(folder: Path) -> None:
    """Make folders, as a container can, deeper than Python's own calls."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("a.so", os.O_CREAT, dir_fd=fd))
    os.close(fd)


def test_folders_as_deep_as_a_container_likes_stop_no_other_removal(root: Path) -> None:
    make_deep(root / IMAGES[3] / "vllm")
    try:
        assert [error for _, error in prune(root)] == ["", "", ""]
        assert names(root) == [*IMAGES[:3]]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


def test_a_folder_that_is_no_cache_of_an_image_is_not_touched(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (root / ("f" * 64)).symlink_to(elsewhere)
    (root / f"{REMOVAL_PREFIX}x").symlink_to(elsewhere)
    (root / IMAGES[5] / "vllm/link").symlink_to(elsewhere)
    (root / "notes").mkdir()
    (root / ("e" * 64)).touch()
    prune(root)
    assert (elsewhere / "data").exists()
    assert names(root) == sorted([f"{REMOVAL_PREFIX}x", *IMAGES[:3], "e" * 64, "f" * 64, "notes"])


def test_without_a_folder_of_caches_nothing_is_removed(tmp_path: Path) -> None:
    assert list(prune_caches(IMAGES[0], (), tmp_path / "none")) == []


def test_only_root_gets_to_what_a_container_opens_to_all(root: Path) -> None:
    cache = make_cache_folder(f"sha256:{IMAGES[0]}", "vllm", root)
    before = os.umask(0o077)
    own = make_cache_folder(f"sha256:{IMAGES[0]}", "triton", root)
    os.umask(before)
    assert own.stat().st_mode & 0o777 == 0o755, "for an image with another user"
    cache.chmod(0o777)
    assert make_cache_folder(f"sha256:{IMAGES[0]}", "vllm", root) == cache
    assert cache.parent.stat().st_mode & 0o777 == 0o700


def test_caches_of_a_heads_plan_are_of_their_image_and_are_pruned_with_it(root: Path) -> None:
    cache = make_cache_folder(f"sha256:{IMAGES[5]}", "_head/vllm", root)
    assert cache == root / IMAGES[5] / "_head/vllm"
    assert cache.stat().st_mode & 0o777 == 0o755
    assert cache.parents[1].stat().st_mode & 0o777 == 0o700
    prune(root)
    assert names(root) == [*IMAGES[:2], IMAGES[5]], "it was used last"


ELF = struct.pack("<4sBB34xQ10xHH2x", b"\x7fELF", 2, 1, 64, 64, 1).ljust(128, b"\1")
"""A file with a table of sections of one entry behind its header."""


def test_kernels_that_a_power_cut_has_cut_are_removed_and_nothing_else(root: Path) -> None:
    folder = root / IMAGES[0] / "triton" / "ab12"
    folder.mkdir(parents=True)
    outside = root.parent / "empty.so"
    outside.touch()
    kept = {"whole.so": ELF, "script.so": b"INPUT(a)", "a.json": b"{}", "b.json": b"", "notes.txt": b"", "a.py": b""}
    cut = {
        "cut.so": ELF[:-1],
        "short.so": ELF[:63],
        "zeros.o": bytes(128),
        "b.cubin": b"",
        "vllm_compile_cache.py": b"",
    }
    for name, content in {**kept, **cut}.items():
        (folder / name).write_bytes(content)
    (folder / "link.so").symlink_to(outside)
    (folder / "folder.so").mkdir()
    assert remove_cut_kernels(f"sha256:{IMAGES[0]}", "triton", root) == len(cut)
    assert names(folder) == sorted(["folder.so", "link.so", *kept])
    assert outside.exists()
    assert remove_cut_kernels(f"sha256:{IMAGES[0]}", "missing", root) == 0


@pytest.mark.parametrize(
    ("files", "empty", "left"),
    [
        (("k.json", "__grp__k.json", "__grp__other.json"), "k.cubin", ["__grp__other.json", "k.json"]),
        (("k.cubin", "__grp__k.json"), "k.json", ["k.cubin"]),
        (("k.cubin", "k.json"), "__grp__k.json", ["k.cubin", "k.json"]),
        (("k.hsaco", "k.json", "__grp__k.json"), "notes.txt", ["__grp__k.json", "k.hsaco", "k.json", "notes.txt"]),
        (("k.json", "__grp__k.json"), "k.ttir", ["k.json", "k.ttir"]),  # as the first versions of sparkd have left it
    ],
)
def test_a_kernel_of_tritons_that_is_not_whole_loses_the_list_that_makes_it_one(
    root: Path, files: tuple[str, ...], empty: str, left: list[str]
) -> None:
    """Triton's FileCacheManager.get_group reads the list; without the binary the engine ends with a KeyError."""
    folder = root / IMAGES[0] / "triton" / "ab12"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_bytes(b"{}")
    (folder / empty).touch()
    assert remove_cut_kernels(f"sha256:{IMAGES[0]}", "triton", root) == (empty != "notes.txt")
    assert names(folder) == left


def test_a_list_goes_before_its_kernel_so_that_an_end_between_the_two_leaves_no_list_alone(root: Path) -> None:
    (root / "__grp__k.json").mkdir()  # which can't be unlinked
    (root / "k.cubin").touch()
    with pytest.raises(IsADirectoryError):
        remove_cut(root, "k.cubin")
    assert (root / "k.cubin").exists()


def test_a_kernel_that_is_whole_at_its_removal_is_kept(root: Path) -> None:
    (root / "a.so").write_bytes(ELF)
    remove_cut(root, "a.so")
    assert (root / "a.so").exists()


def test_folders_as_deep_as_a_container_likes_keep_no_start_away(root: Path) -> None:
    make_deep(root / IMAGES[0] / "vllm")
    try:
        assert remove_cut_kernels(IMAGES[0], "vllm", root) in (0, 1)  # a path may be too long for the kernel
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # what removes it for pytest is recursive
