"""The manifest of a model's folder: names and sizes of weights, hashes of small files."""

import json
import os
import time
from hashlib import sha256

import pytest
from tests.tree import Tree

from sparkd.base.host import weights
from sparkd.base.host.files import Files

FOLDER = "/srv/models/m"
INDEX_NAME = "model.safetensors.index.json"
INDEX = f"{FOLDER}/{INDEX_NAME}"
READ_BYTES = 1 << 20
"""An index is read in pieces of this size."""
MANY_SHARDS, TENSORS_OF_A_SHARD = 163, 200
"""An index of them has 2 MB. The large checkpoints of DeepSeek-V3 have 163 shards."""
MOST_CPU_SECONDS = 0.2
"""Enough for names and sizes; reading the weights would take minutes."""


def manifest(tree: Tree) -> dict[str, str]:
    return dict(weights.manifest(Files(str(tree.root)), FOLDER))


def index(tree: Tree, *shards: str) -> None:
    """Write an index that has one tensor in each of these shards."""
    weight_map = {f"model.layers.{number}.w": shard for number, shard in enumerate(shards)}
    tree.file(INDEX, json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=2))


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
    texts = manifest(tree)
    assert texts["b.safetensors"] == texts["sub/d.safetensors"] == "missing"
    assert texts["a.safetensors"] == "1 bytes"
    assert texts["sub/c.safetensors"] == "3 bytes"


def test_links_are_followed_and_a_dangling_one_is_missing(tree: Tree) -> None:
    tree.file("/hub/blobs/0", "1234567")
    tree.link(f"{FOLDER}/model.safetensors", "../../../hub/blobs/0")
    tree.link(f"{FOLDER}/gone.safetensors", "../../../hub/blobs/1")
    tree.link(f"{FOLDER}/config.json", "/hub/blobs/2")
    assert manifest(tree) == {"model.safetensors": "7 bytes", "gone.safetensors": "missing", "config.json": "missing"}


def test_an_index_cannot_lead_out_of_the_folder(tree: Tree) -> None:
    shards = ("../other/a.bin", "/etc/b.bin", "c\0.bin")
    tree.file(INDEX, f'{{"a": {{"x": "{shards[0]}", "y": "{shards[1]}", "z": "{shards[2]}"}}}}')
    texts = manifest(tree)
    assert {texts[shard] for shard in shards} == {"outside of the model's folder"}


def test_an_index_that_takes_several_reads_is_read_to_its_end(tree: Tree) -> None:
    shards = [f"model-{number:05}-of-{MANY_SHARDS:05}.safetensors" for number in range(MANY_SHARDS)]
    index(tree, *(shard for shard in shards for _ in range(TENSORS_OF_A_SHARD)))
    assert tree.path(INDEX).stat().st_size > READ_BYTES
    assert set(manifest(tree)) == {*shards, INDEX_NAME}


def test_other_kinds_than_files_are_named_and_never_read(tree: Tree) -> None:
    tree.folder(f"{FOLDER}/config.json")
    os.mkfifo(tree.root / FOLDER.lstrip("/") / "tokenizer.json")
    assert manifest(tree) == {"config.json": "a folder, no file", "tokenizer.json": "a something else, no file"}


def test_a_large_file_beside_the_weights_counts_by_size(tree: Tree) -> None:
    tree.sparse(f"{FOLDER}/tokenizer.json", weights.HASHED_LIMIT_BYTES + 1)
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


def test_an_index_of_too_many_files_raises(tree: Tree) -> None:
    index(tree, *(f"{number}.bin" for number in range(weights.MOST_FILES + 1)))
    with pytest.raises(OSError, match=f"more than {weights.MOST_FILES} files"):
        manifest(tree)


def test_many_small_files_are_hashed_up_to_a_bound(tree: Tree) -> None:
    """Sparse files of a user take no disk, but it would take half an hour to read many of them."""
    for number in range(weights.HASHED_IN_ALL_BYTES // weights.HASHED_LIMIT_BYTES + 1):
        tree.sparse(f"{FOLDER}/{number}.jinja", weights.HASHED_LIMIT_BYTES - number)
    with pytest.raises(OSError, match=f"more than {weights.HASHED_IN_ALL_BYTES >> 20} MiB of files that are hashed"):
        manifest(tree)


def test_an_index_too_large_to_be_read_counts_by_size(tree: Tree) -> None:
    tree.sparse(INDEX, 1 << 40)
    assert manifest(tree) == {INDEX_NAME: f"{1 << 40} bytes"}


def test_two_hundred_shards_take_milliseconds(tree: Tree) -> None:
    shards = [f"model-{number:05}-of-00200.safetensors" for number in range(200)]
    index(tree, *shards)
    for shard in shards:
        tree.sparse(f"{FOLDER}/{shard}", 5 << 30)
    before = time.process_time()
    assert len(manifest(tree)) == len(shards) + 1, "the shards and their index"
    assert time.process_time() - before < MOST_CPU_SECONDS


def test_shards_are_in_the_order_they_are_loaded_in_and_links_are_one_file(tree: Tree) -> None:
    for name in ("m-10.safetensors", "m-9.safetensors", "config.json"):
        tree.sparse(f"{FOLDER}/{name}", 1 << 30)
    tree.link(f"{FOLDER}/again.safetensors", f"{tree.root}{FOLDER}/m-9.safetensors")
    tree.link(f"{FOLDER}/gone.safetensors", "missing")
    tree.folder(f"{FOLDER}/folder.safetensors")
    shards = weights.list_shards(Files(), f"{tree.root}{FOLDER}")
    assert [shard.name for shard in shards] == ["m-9.safetensors", "m-10.safetensors"]
    assert {shard.size_bytes for shard in shards} == {1 << 30}
