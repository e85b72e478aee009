"""The manifest of a model's folder: names and sizes of weights, hashes of small files."""

import json
import os
import time
from hashlib import sha256

import pytest
from tests.tree import Tree

from sparkd.base.host import safetensors, weights
from sparkd.base.host.files import Files
from sparkd.base.host.model_folder import examine

FOLDER = "/srv/models/m"


def manifest(tree: Tree) -> dict[str, str]:
    return dict(weights.manifest(Files(str(tree.root)), FOLDER))


def index(tree: Tree, *shards: str, name: str = "model.safetensors.index.json") -> None:
    weight_map = {f"model.layers.{number}.w": shard for number, shard in enumerate(shards)}
    tree.file(f"{FOLDER}/{name}", json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=2))


def test_weights_count_by_size_and_small_files_by_content(tree: Tree) -> None:
    tree.file(f"{FOLDER}/model.safetensors", "12345")
    tree.file(f"{FOLDER}/config.json", "{}")
    tree.file(f"{FOLDER}/chat_template.jinja", "x")
    tree.file(f"{FOLDER}/README.md", "notes")
    assert manifest(tree) == {
        "model.safetensors": "5 bytes",
        "config.json": f"sha256 {sha256(b'{}').hexdigest()}",
        "chat_template.jinja": f"sha256 {sha256(b'x').hexdigest()}",
    }


def test_a_shard_that_only_the_index_names_is_missing(tree: Tree) -> None:
    index(tree, "a.safetensors", "b.safetensors", "sub/c.safetensors", "sub/d.safetensors")
    tree.file(f"{FOLDER}/a.safetensors", "1")
    tree.file(f"{FOLDER}/sub/c.safetensors", "123")
    found = manifest(tree)
    assert found["b.safetensors"] == found["sub/d.safetensors"] == "missing"
    assert (found["a.safetensors"], found["sub/c.safetensors"]) == ("1 bytes", "3 bytes")


def test_links_are_followed_and_a_dangling_one_is_missing(tree: Tree) -> None:
    tree.file("/hub/blobs/0", "1234567")
    tree.link(f"{FOLDER}/model.safetensors", "../../../hub/blobs/0")
    tree.link(f"{FOLDER}/gone.safetensors", "../../../hub/blobs/1")
    tree.link(f"{FOLDER}/config.json", "/hub/blobs/2")
    assert manifest(tree) == {"model.safetensors": "7 bytes", "gone.safetensors": "missing", "config.json": "missing"}


def test_an_index_cannot_lead_out_of_the_folder(tree: Tree) -> None:
    index(tree, "../other/a.bin", "/etc/b.bin")
    found = manifest(tree)
    assert found["../other/a.bin"] == found["/etc/b.bin"] == "outside of the model's folder"


def test_an_index_larger_than_a_piece_is_read_whole(tree: Tree) -> None:
    shards = [f"model-{number:05}-of-00163.safetensors" for number in range(163)]
    index(tree, *(shards[number // 200] for number in range(163 * 200)))
    assert set(manifest(tree)) == {*shards, "model.safetensors.index.json"}


def test_other_kinds_than_files_are_named_and_never_read(tree: Tree) -> None:
    tree.folder(f"{FOLDER}/config.json")
    os.mkfifo(tree.root / FOLDER.lstrip("/") / "tokenizer.json")
    assert manifest(tree) == {"config.json": "a folder, no file", "tokenizer.json": "a something else, no file"}


def test_a_large_file_beside_the_weights_counts_by_size(tree: Tree) -> None:
    os.truncate(tree.file(f"{FOLDER}/tokenizer.json"), weights.HASHED_LIMIT_BYTES + 1)
    assert manifest(tree) == {"tokenizer.json": f"{weights.HASHED_LIMIT_BYTES + 1} bytes"}


def test_a_broken_index_names_nothing(tree: Tree) -> None:
    tree.file(f"{FOLDER}/x.index.json", '{"a": "a.safetensors')
    assert set(manifest(tree)) == {"x.index.json"}


def test_a_folder_that_cannot_be_read_raises(tree: Tree) -> None:
    with pytest.raises(FileNotFoundError):
        manifest(tree)
    tree.file(FOLDER)
    with pytest.raises(NotADirectoryError):
        manifest(tree)


def test_an_index_without_end_raises(tree: Tree) -> None:
    index(tree, *(f"{number}.bin" for number in range(weights.MOST_FILES + 1)))
    with pytest.raises(OSError, match="more than 10000 files"):
        manifest(tree)


def test_many_small_files_are_hashed_up_to_a_bound(tree: Tree) -> None:
    """Sparse ones of a user's take no disk, and half an hour of reading."""
    for number in range(9):
        os.truncate(tree.file(f"{FOLDER}/{number}.jinja", ""), weights.HASHED_LIMIT_BYTES - number)
    with pytest.raises(OSError, match="more than 512 MiB of files that are hashed"):
        manifest(tree)


def test_an_offset_that_no_file_can_have_is_an_error(tree: Tree) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**400]}}).encode()
    tree.file(f"{FOLDER}/model.safetensors", "")
    (tree.root / f"{FOLDER[1:]}/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="data_offsets"):
        safetensors.read_sizes(Files(str(tree.root)), (f"{FOLDER}/model.safetensors",))


def test_of_an_index_without_names_or_end_little_is_read(tree: Tree) -> None:
    """A sparse one of a user's takes no disk, and a reader of all of it hours."""
    path = tree.file(f"{FOLDER}/model.safetensors.index.json", "{")
    os.truncate(path, 1 << 40)
    assert manifest(tree) == {"model.safetensors.index.json": f"{1 << 40} bytes"}
    (flaw,) = examine(Files(str(tree.root)), FOLDER).flaws
    assert "an index of more than 64 MiB" in flaw.wrong


def test_two_hundred_shards_take_milliseconds(tree: Tree) -> None:
    shards = [f"model-{number:05}-of-00200.safetensors" for number in range(200)]
    index(tree, *shards)
    for shard in shards:
        os.truncate(tree.file(f"{FOLDER}/{shard}"), 5 << 30)
    before = time.process_time()
    assert len(manifest(tree)) == 201
    assert time.process_time() - before < 0.2, "seconds of CPU"
