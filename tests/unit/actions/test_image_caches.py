"""Caches of images: the youngest stay, and what is not a cache's is never removed."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.actions.compile_caches import (
    REMOVAL_PREFIX,
    Pruned,
    make_cache_folder,
    prune_caches,
    remove_empty_kernels,
)
from sparkd.base.host import caches
from sparkd.base.host.files import Files

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


def left(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir())


def removed(root: Path, keep: str = IMAGES[0], *mounted: str) -> list[Pruned]:
    return list(prune_caches(f"sha256:{keep}", mounted, root))


def test_the_three_that_were_used_last_stay(root: Path) -> None:
    assert removed(root) == [Pruned(str(root / image)) for image in IMAGES[3:]]
    assert left(root) == list(IMAGES[:3])


def test_the_one_in_use_stays_however_old(root: Path) -> None:
    removed(root, IMAGES[5])
    assert left(root) == [*IMAGES[:2], IMAGES[5]]


def test_an_interrupted_removal_is_completed_and_is_not_counted_as_kept(root: Path) -> None:
    """A removal inside a folder makes it look young: it must be neither kept for that nor used again."""
    walk = prune_caches(IMAGES[0], (), root)
    next(walk)
    (root / IMAGES[4]).rename(root / f"{REMOVAL_PREFIX}{IMAGES[4]}")  # interrupted here
    assert removed(root) == [Pruned(str(root / f"{REMOVAL_PREFIX}{IMAGES[4]}")), Pruned(str(root / IMAGES[5]))]
    assert left(root) == list(IMAGES[:3])


def test_a_mount_inside_a_cache_is_left_alone(root: Path) -> None:
    mounted = str(root / IMAGES[4] / "vllm")
    pruned = removed(root, IMAGES[0], "/", str(root), mounted)
    assert Pruned(str(root / IMAGES[4]), "something is mounted in it") in pruned
    assert left(root) == [*IMAGES[:3], IMAGES[4]]
    assert (root / IMAGES[4] / "vllm/kernels.bin").exists()


def test_mounts_are_compared_with_links_resolved(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    list(prune_caches(IMAGES[0], [str(root / IMAGES[4])], tmp_path / "link"))
    assert left(root) == [*IMAGES[:3], IMAGES[4]]


def test_a_folder_that_cannot_be_removed_stops_no_other_removal(root: Path) -> None:
    (root / f"{REMOVAL_PREFIX}{IMAGES[3]}").touch()  # in the way of its new name
    pruned = removed(root)
    assert [one.path for one in pruned if one.error] == [str(root / IMAGES[3])]
    assert left(root) == [f"{REMOVAL_PREFIX}{IMAGES[3]}", *IMAGES[:4]]


def test_a_removal_that_is_killed_is_no_removal(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for want of memory: it writes no reason then."""
    program = tmp_path / "programs/rm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert [pruned.error for pruned in removed(root)] == ["rm ended with -9"] * 3
    assert left(root) == [*(f"{REMOVAL_PREFIX}{image}" for image in IMAGES[3:]), *IMAGES[:3]]


def make_deep(folder: Path) -> None:
    """As a container can: deeper than Python's own calls."""
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
        assert [one.error for one in removed(root)] == ["", "", ""]
        assert left(root) == [*IMAGES[:3]]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


def test_nothing_else_is_touched(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (root / ("f" * 64)).symlink_to(elsewhere)
    (root / f"{REMOVAL_PREFIX}x").symlink_to(elsewhere)
    (root / IMAGES[5] / "vllm/link").symlink_to(elsewhere)
    (root / "notes").mkdir()
    (root / ("e" * 64)).touch()
    removed(root)
    assert (elsewhere / "data").exists()
    assert left(root) == sorted([f"{REMOVAL_PREFIX}x", *IMAGES[:3], "e" * 64, "f" * 64, "notes"])


def test_no_cache_is_nothing_to_do(tmp_path: Path) -> None:
    assert list(prune_caches(IMAGES[0], (), tmp_path / "none")) == []


def test_only_root_gets_to_what_a_container_opens_to_all(root: Path) -> None:
    made = make_cache_folder(f"sha256:{IMAGES[0]}", "vllm", root)
    before = os.umask(0o077)
    own = make_cache_folder(f"sha256:{IMAGES[0]}", "triton", root)
    os.umask(before)
    assert own.stat().st_mode & 0o777 == 0o755, "for an image with another user"
    made.chmod(0o777)
    assert make_cache_folder(f"sha256:{IMAGES[0]}", "vllm", root) == made
    assert made.parent.stat().st_mode & 0o777 == 0o700


def test_caches_of_a_heads_plan_are_of_their_image_and_are_pruned_with_it(root: Path) -> None:
    made = make_cache_folder(f"sha256:{IMAGES[5]}", "_head/vllm", root)
    assert made == root / IMAGES[5] / "_head/vllm"
    assert made.stat().st_mode & 0o777 == 0o755
    assert made.parents[1].stat().st_mode & 0o777 == 0o700
    removed(root)
    assert left(root) == [*IMAGES[:2], IMAGES[5]], "it was used last"


def test_what_a_power_cut_has_emptied_is_cleared_and_nothing_else(root: Path) -> None:
    folder = root / IMAGES[0] / "triton" / "ab12"
    folder.mkdir(parents=True)
    outside = root.parent / "empty.so"
    outside.touch()
    for name in ("a.so", "b.cubin", "notes.txt"):
        (folder / name).touch()
    (folder / "whole.so").write_bytes(b"\x7fELF")
    (folder / "link.so").symlink_to(outside)
    (folder / "folder.so").mkdir()
    assert remove_empty_kernels(f"sha256:{IMAGES[0]}", "triton", root) == 2
    assert sorted(one.name for one in folder.iterdir()) == ["folder.so", "link.so", "notes.txt", "whole.so"]
    assert outside.exists()
    assert remove_empty_kernels(f"sha256:{IMAGES[0]}", "missing", root) == 0


def test_folders_as_deep_as_a_container_likes_keep_no_start_away(root: Path) -> None:
    make_deep(root / IMAGES[0] / "vllm")
    try:
        assert remove_empty_kernels(IMAGES[0], "vllm", root) in (0, 1)  # a path may be too long for the kernel
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # what removes it for pytest is recursive


BUILD = """\
ninja_required_version = 1.3
rule cuda_compile
  command = $nvcc -c $in -o $out

build /c/op/a.cuda.o: cuda_compile /s/a.cu
build /c/op/b.cuda.o: cuda_compile /s/b.cu
build /c/op/c.o: compile /s/c.cc

build /c/op/op.so: nvcc_link /c/op/a.cuda.o /c/op/b.cuda.o /c/op/c.o
default /c/op/op.so
"""


def test_objects_of_builds_under_way_are_counted_and_those_of_others_not(tmp_path: Path) -> None:
    cache = tmp_path / caches.path(IMAGES[0], "flashinfer").lstrip("/")
    for name, made in (("op", ("a.cuda.o",)), ("linked", ("a.cuda.o", "linked.so"))):
        folder = cache / "0.6.12" / "121a" / "cached_ops" / name
        folder.mkdir(parents=True)
        (folder / "build.ninja").write_text(BUILD)
        for one in made:
            (folder / one).write_bytes(b"o")
    files = Files(str(tmp_path))
    assert caches.count_objects(files, IMAGES[0], ("triton", "flashinfer")) == (1, 3)
    assert caches.count_objects(files, IMAGES[1], ("flashinfer",)) == (0, 0)
    assert caches.count_objects(files, IMAGES[0], ("triton", "_head/flashinfer")) == (0, 0)
    assert caches.count_objects(files, IMAGES[0], ("triton",)) == (0, 0)
    assert caches.count_kernels(files, IMAGES[0], ("flashinfer", "triton")) == 3


def test_a_list_of_steps_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / caches.path(IMAGES[0], "flashinfer").lstrip("/") / "op"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "build.ninja")
    assert caches.count_objects(Files(str(tmp_path)), IMAGES[0], ("flashinfer",)) == (0, 0)


def test_the_folders_of_all_images_are_listed_with_size_and_age(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    kernel = tree.file(f"{caches.ROOT}/{IMAGES[0]}/triton/a/one.so", "x" * 7)
    os.utime(kernel, (1e9, 1e9))
    os.utime(tree.file(f"{caches.ROOT}/{IMAGES[0]}/triton/b/one.json", "x"), (2e9, 2e9))
    tree.folder(f"{caches.ROOT}/{IMAGES[1]}/vllm")
    tree.file(f"{caches.ROOT}/other/vllm/one.so")
    assert caches.describe_all(Files(str(tmp_path))).splitlines() == [
        f"{caches.ROOT}/{IMAGES[0]}/triton: folder, 2 files, 0 MiB, the newest of 2033-05-18 03:33 UTC",
        f"{caches.ROOT}/{IMAGES[1]}/vllm: folder, 0 files, 0 MiB",
    ]
