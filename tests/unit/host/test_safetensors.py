"""The header of a safetensors file: the sizes of its tensors, and whether the file has them all."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tree import Tree

from sparkd.base.host import safetensors
from sparkd.base.host.files import Files

FILE = "/srv/models/m/model.safetensors"


def test_an_offset_that_no_file_can_have_is_an_error(tree: Tree) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**400]}}).encode()
    tree.file(FILE).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="data_offsets"):
        safetensors.read_sizes(Files(str(tree.root)), (FILE,))


def test_the_order_of_tensors_in_a_header_does_not_matter(tree: Tree) -> None:
    tensors = {
        f"w{start}": {"dtype": "U8", "shape": [9], "data_offsets": [start, start + 9]} for start in range(0, 4500, 9)
    }
    header = json.dumps(dict(reversed(tensors.items())), indent=1).encode() + b"   "
    real = tree.file(FILE)
    real.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4500))
    assert safetensors.find_fault(Files(str(tree.root)), FILE)[1] == ""
    os.truncate(real, real.stat().st_size - 1)
    assert "cut off" in safetensors.find_fault(Files(str(tree.root)), FILE)[1]


@given(st.binary(max_size=64) | st.integers(0, 70).map(lambda size: size.to_bytes(8, "little") + b'{"a":1}'))
def test_whatever_a_file_holds_it_is_whole_or_something_is_wrong(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_bytes(content)
        wrong = safetensors.find_fault(Files(folder), "/x")[1]
    assert wrong or json.loads(content[8:]) == {"a": 1}
