"""What the caches of images hold: kernels, the objects of builds under way, and how large and old they are."""

import os
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.base.host import caches
from sparkd.base.host.files import Files

IMAGES = (f"{0:064x}", f"{1:064x}")
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


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A cache of FlashInfer with one build under way, and one that is linked."""
    cache = tmp_path / caches.path(IMAGES[0], "flashinfer").lstrip("/")
    for name, built in (("op", ("a.cuda.o",)), ("linked", ("a.cuda.o", "linked.so"))):
        folder = cache / "0.6.12" / "121a" / "cached_ops" / name
        folder.mkdir(parents=True)
        (folder / "build.ninja").write_text(BUILD)
        for file in built:
            (folder / file).write_bytes(b"o")
    return Files(str(tmp_path))


def test_objects_of_builds_under_way_are_counted_and_those_of_others_not(files: Files) -> None:
    assert caches.count_objects(files, IMAGES[0], ("triton", "flashinfer")) == (1, 3)


@pytest.mark.parametrize(
    ("image_id", "names"),
    [(IMAGES[1], ("flashinfer",)), (IMAGES[0], ("triton", "_head/flashinfer")), (IMAGES[0], ("triton",))],
    ids=["another image", "the plans of a head", "no cache of FlashInfer"],
)
def test_without_builds_under_way_no_objects_are_needed(files: Files, image_id: str, names: tuple[str, ...]) -> None:
    assert caches.count_objects(files, image_id, names) == (0, 0)


def test_kernels_are_counted_in_all_caches_of_an_image(files: Files) -> None:
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
        f"{caches.ROOT}/{IMAGES[0]}/triton: folder, files: 2, 0 MiB, the newest of 2033-05-18 03:33 UTC",
        f"{caches.ROOT}/{IMAGES[1]}/vllm: folder, files: 0, 0 MiB",
    ]


CACHE = caches.path(IMAGES[0], "vllm")


def test_a_large_cache_is_counted_to_a_bound(tree: Tree) -> None:
    for number in range(20):
        tree.file(f"{CACHE}/{number % 3}/{number}", "x")
    files = Files(str(tree.root))
    assert caches.count_folder(files, CACHE, most=100).whole
    part = caches.count_folder(files, CACHE, most=10)
    assert not part.whole
    assert part.files <= 10
    assert not part.empty


def test_a_folder_that_can_not_be_looked_into_is_left_out(tree: Tree) -> None:
    """Here one whose path is longer than the kernel takes; who is not root meets folders that are closed."""
    tree.file(f"{CACHE}/b", "1")
    at = os.open(tree.path(CACHE), os.O_DIRECTORY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=at)
        below = os.open("d" * 250, os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    folder = caches.count_folder(Files(str(tree.root)), CACHE)
    assert folder.files == folder.bytes == 1
    assert not folder.whole
