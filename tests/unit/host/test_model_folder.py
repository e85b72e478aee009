"""A model's folder, examined as its loader will read it."""

import os

from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.host.model_folder import examine

FOLDER = "/srv/models/m"


def test_no_more_than_64_mib_of_an_index_are_read(tree: Tree) -> None:
    """A user's sparse file takes no disk, but it would take hours to read."""
    os.truncate(tree.file(f"{FOLDER}/model.safetensors.index.json", "{"), 1 << 40)
    (flaw,) = examine(Files(str(tree.root)), FOLDER).flaws
    assert "an index of more than 64 MiB" in flaw.wrong
