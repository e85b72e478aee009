"""Files that nobody but their owner may read, such as keys and tokens."""

import os
from collections.abc import Callable

import pytest
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.host.ownership import read_private
from sparkd.base.lib.errors import ConfigError


def test_a_private_file_belongs_to_one_of_its_owners(tree: Tree) -> None:
    tree.file("/token", "x", 0o600)
    files, uid = Files(str(tree.root)), os.getuid()
    assert read_private(files, "/token", 10, uid + 1, uid).content == b"x"
    with pytest.raises(ConfigError, match=f"belongs to uid {uid}"):
        read_private(files, "/token", 10, uid + 1, uid + 2)


@pytest.mark.parametrize(("make", "command"), [(Tree.file, "sudo chmod 600"), (Tree.folder, "ls -l")])
def test_a_hint_quotes_the_path_that_a_recipe_may_name(
    tree: Tree, make: Callable[[Tree, str], object], command: str
) -> None:
    path = "/tmp/a;reboot;key"
    make(tree, path)
    with pytest.raises(ConfigError) as refused:
        read_private(Files(str(tree.root)), path, 10, os.getuid())
    assert refused.value.hint == f"{command} '{path}'"
