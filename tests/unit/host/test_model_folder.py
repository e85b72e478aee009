"""A model's folder, examined as its loader will read it."""

import os

import pytest
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.host.model_folder import examine
from sparkd.base.host.weights import MOST_FILES

FOLDER = "/srv/models/m"


def test_no_more_than_64_mib_of_an_index_are_read(tree: Tree) -> None:
    """A user's sparse file takes no disk, but it would take hours to read."""
    os.truncate(tree.file(f"{FOLDER}/model.safetensors.index.json", "{"), 1 << 40)
    (flaw,) = examine(Files(str(tree.root)), FOLDER).flaws
    assert "an index of more than 64 MiB" in flaw.wrong


def test_names_of_sets_of_shards_are_completed_up_to_a_bound(tree: Tree) -> None:
    """A hundred files without content name a million shards."""
    for letter in "ab":
        tree.file(f"{FOLDER}/{letter}-00001-of-{MOST_FILES // 2:05}.safetensors")
    (missing,) = (flaw for flaw in examine(Files(str(tree.root)), FOLDER).flaws if flaw.wrong == "is missing")
    assert missing.count == MOST_FILES - 2
    tree.file(f"{FOLDER}/c-00001-of-99999.safetensors")
    with pytest.raises(OSError, match=f"more than {MOST_FILES} files of weights"):
        examine(Files(str(tree.root)), FOLDER)
