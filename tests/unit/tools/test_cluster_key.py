"""`sparkd init`: a key is made once, never printed, and never lost to a second one."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.tools.node_settings import HEAD_OWN, HEAD_PUBLIC, KEY, PAIR, files, take_back

from sparkd.base.cluster import head_key
from sparkd.base.cluster.auth import forget_command, read_keys
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.tools.setup.cluster_key import SecretFile, create_key, joined_files, key_text, new_files, rotate_key
from sparkd.tools.setup.node_files import NodeFiles, Values
from sparkd.tools.setup.setup_manifest import Setup


def keys(root: Path) -> tuple[bytes, ...]:
    return read_keys(Files(str(root), os.geteuid()), KEY)


def test_a_new_key_is_32_bytes_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / KEY[1:]
    assert f"next: copy {KEY} to each other node" in create_key(KEY, Setup(tmp_path))
    assert [len(key) for key in keys(tmp_path)] == [32]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["cluster.key"]
    create_key(KEY, Setup(tmp_path / "other"))
    assert keys(tmp_path) != keys(tmp_path / "other")


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "cluster.key"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"exists.*--rotate"):
        create_key("/cluster.key", Setup(tmp_path))
    assert path.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["cluster.key"]


def test_an_empty_file_is_written(tmp_path: Path) -> None:
    """As a power cut leaves one that was just copied. What is said of it names this command, which named --rotate."""
    path = tmp_path / KEY[1:]
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    with pytest.raises(ConfigError, match=r"no key in it .*--new-cluster-key"):
        rotate_key(KEY, Setup(tmp_path))
    create_key(KEY, Setup(tmp_path))
    assert len(keys(tmp_path)) == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_said_of_a_malformed_key_makes_a_new_one(tmp_path: Path) -> None:
    """As of one whose last digit was not pasted: `init` writes over no file, nor puts a key above that line."""
    path = tmp_path / KEY[1:]
    path.parent.mkdir(parents=True)
    steps = "take that line out, or copy the file", f"another node; .*: sudo rm {KEY}; .* sudo sparkd init --new-clus"
    for text, step in zip((key_text("a" * 63), key_text()), steps, strict=True):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(UsageError, match="exists, and is never overwritten"):
            create_key(KEY, Setup(tmp_path))
        with pytest.raises(ConfigError, match=step):
            rotate_key(KEY, Setup(tmp_path))
    path.unlink()
    create_key(KEY, Setup(tmp_path))
    assert len(keys(tmp_path)) == 1


def test_a_broken_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "cluster.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="it is a symlink"):
        create_key("/cluster.key", Setup(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["cluster.key"]


def test_rotation_puts_a_new_key_above_the_one_that_signed_and_is_completed_before_another_one(tmp_path: Path) -> None:
    setup, path = Setup(tmp_path), tmp_path / KEY[1:]
    with pytest.raises(ConfigError, match="does not exist"):
        rotate_key(KEY, setup)
    create_key(KEY, setup)
    first = keys(tmp_path)[0]
    lines = rotate_key(KEY, setup)
    assert f"next: copy {KEY} to each other node" in lines
    assert forget_command(KEY) in lines
    second = keys(tmp_path)[0]
    assert keys(tmp_path) == (second, first)
    assert second != first
    assert path.stat().st_mode & 0o7777 == 0o600
    with pytest.raises(UsageError, match=r"2 keys: the rotation before is not complete .*sed -i"):
        rotate_key(KEY, setup)
    assert keys(tmp_path) == (second, first)
    for _ in range(2):  # a second run changes nothing
        forget_old(tmp_path)
        assert keys(tmp_path) == (second,)
        assert path.stat().st_mode & 0o7777 == 0o600


def forget_old(root: Path) -> None:
    subprocess.run(["sh", "-c", forget_command(str(root / KEY[1:])).removeprefix("sudo ")], check=True)


def rotate_inits(tree: Tree) -> None:
    NodeFiles(Host(tree.root), {}).write({}, new_files(KEY))
    rotate_key(KEY, Setup(tree.root))


def rotate_a_commands(tree: Tree) -> None:
    create_key(KEY, Setup(tree.root))
    rotate_key(KEY, Setup(tree.root))


def rotate_a_persons(tree: Tree) -> None:
    tree.file(KEY, f"{'ab' * 32}\n", mode=0o600)
    rotate_key(KEY, Setup(tree.root))


def rotate_as_an_earlier_version(tree: Tree) -> None:
    """Its rotation is not in the manifest, which has the key from before a join."""
    tree.file(KEY, f"{'ab' * 32}\n", mode=0o600)
    Setup(tree.root).write(KEY, key_text("cd" * 32), 0o600)
    tree.file(KEY, key_text("ef" * 32, "cd" * 32), mode=0o600)


@pytest.mark.parametrize("end_rotation", [lambda _: None, forget_old], ids=["with the old key", "without the old key"])
@pytest.mark.parametrize("rotate", [rotate_inits, rotate_a_commands, rotate_a_persons, rotate_as_an_earlier_version])
def test_deinit_removes_a_key_that_was_rotated_and_keeps_none_of_it(
    tree: Tree, rotate: Callable[[Tree], None], end_rotation: Callable[[Path], None]
) -> None:
    rotate(tree)
    end_rotation(tree.root)
    assert f"removed {KEY}" in take_back(tree)
    assert files(tree) == {}


def test_deinit_removes_the_key_of_another_node_that_was_copied_over_its_own(tmp_path: Path) -> None:
    NodeFiles(Host(tmp_path), {}).write({}, joined_files(KEY, [b"a" * 32], [b"b" * 32]))
    Tree(tmp_path).file(KEY, key_text("ef" * 32, "cd" * 32), mode=0o600)
    assert take_back(Tree(tmp_path)) == [f"removed {head_key.PUBLIC}", f"removed {KEY}"]


@pytest.mark.parametrize("text", [f"{'cd' * 32}\n", key_text("cd" * 32, "# the one of the lab"), "", "mine"])
def test_deinit_leaves_a_file_that_is_a_persons(tmp_path: Path, text: str) -> None:
    create_key(KEY, Setup(tmp_path))
    file = Tree(tmp_path).file(KEY, text, mode=0o600)
    assert take_back(Tree(tmp_path)) == [f"left {KEY}: it was changed since"]
    assert file.read_text() == text


def test_deinit_leaves_a_key_that_a_person_has_copied_here(tmp_path: Path) -> None:
    file = Tree(tmp_path).file(KEY, key_text("cd" * 32), mode=0o600)
    assert take_back(Tree(tmp_path)) == []
    assert file.exists()


def test_a_path_below_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be read"):
        create_key("/file/cluster.key", Setup(tmp_path))


@pytest.mark.parametrize("earlier", [False, True], ids=["by a person", "by an earlier version"])
def test_a_key_from_before_a_join_is_kept_nowhere_and_does_not_come_back(spark: Tree, earlier: bool) -> None:
    old, new = "ab" * 32, "cd" * 32
    spark.file(KEY, f"{old}\n", mode=0o600)
    node_files = NodeFiles(Host(spark.root), {})
    if earlier:
        Setup(spark.root).write(KEY, f"{new}\n", 0o600)
    node_files.write({("cluster", "nodes"): PAIR}, [SecretFile(KEY, f"{new}\n", replaces=True)])
    assert [name for name, text in files(spark).items() if old in text] == []
    assert f"removed {KEY}" in take_back(spark)
    assert not spark.path(KEY).exists()


def test_a_head_gets_a_key_of_its_own_that_stays_and_is_taken_back(spark: Tree) -> None:
    node_files = NodeFiles(Host(spark.root), {})
    values: Values = {("cluster", "nodes"): PAIR}
    assert f"{HEAD_OWN}: a new key" in list(node_files.changes(values, node_files.load().settings, new_files(KEY)))
    node_files.write(values, new_files(KEY))
    own = spark.path(HEAD_OWN)
    assert own.stat().st_mode & 0o7777 == 0o600
    before = own.read_text()
    assert before.split()[-1] != spark.path(KEY).read_text().split()[-1]
    node_files.write(values, new_files(KEY))
    assert own.read_text() == before
    take_back(spark)
    assert not own.exists(), "a new head means a new join"


def test_a_node_that_joins_keeps_the_public_key_of_the_last_head_alone(spark: Tree) -> None:
    node_files, path = NodeFiles(Host(spark.root), {}), spark.path(HEAD_PUBLIC)
    for head in (b"a" * 32, b"b" * 32):
        node_files.write({("cluster", "nodes"): PAIR}, joined_files(KEY, (b"k" * 32,), (head,)))
        assert path.read_text().split()[-1] == head.hex()
        assert path.read_text().count("\n") == 2
        assert path.stat().st_mode & 0o7777 == 0o600
    take_back(spark)
    assert not path.exists()


def test_rotate_writes_no_other_file_than_the_clusters_key(tmp_path: Path) -> None:
    create_key(KEY, Setup(tmp_path))
    head = Tree(tmp_path).file(head_key.PRIVATE, f"{'ab' * 32}\n", mode=0o600)
    rotate_key(KEY, Setup(tmp_path))
    assert head.read_text() == f"{'ab' * 32}\n"
