"""The header of a safetensors file: the sizes of its tensors."""

import json

import pytest
from tests.tree import Tree

from sparkd.base.host import safetensors
from sparkd.base.host.files import Files

FILE = "/srv/models/m/model.safetensors"


def test_an_offset_that_no_file_can_have_is_an_error(tree: Tree) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**400]}}).encode()
    tree.file(FILE).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="data_offsets"):
        safetensors.read_sizes(Files(str(tree.root)), (FILE,))
