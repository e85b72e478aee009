"""The files of a node that is set up: written, changed by a person, taken over by a join, and taken back."""

import pytest
from tests.tree import Tree
from tests.unit.tools.node_settings import HEAD_OWN, HEAD_PUBLIC, KEY, OWN, PAIR, TOML, files, settings

from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli.console import prompt
from sparkd.tools.setup.cluster_key import KeyFile, joined_files, new_files
from sparkd.tools.setup.node_files import HEAD, NodeFiles, Values
from sparkd.tools.setup.setup_manifest import Setup
from sparkd.tools.setup.wizard import Wishes, Wizard


@pytest.mark.parametrize("text", ["", f"at = 1\n{HEAD}", f"{HEAD}at = 1\n", f"{HEAD}[engine]\nrecipe = 'x'\n"])
def test_a_file_that_is_not_in_the_manifest_is_nothing_to_take_back(spark: Tree, text: str) -> None:
    spark.file(OWN, text)
    NodeFiles(Host(spark.root), {}).adopt()
    assert list(Setup(spark.root).take_back()) == []
    assert (spark.root / OWN.lstrip("/")).read_text() == text


@pytest.mark.parametrize("text", ["[engine]\nrecipe = 'x'\n", f"{HEAD}at = 1\n"])
def test_a_file_in_place_of_the_one_that_was_written_is_left(spark: Tree, text: str) -> None:
    NodeFiles(Host(spark.root), {}).write({("engine", "recipe"): "mine"})
    spark.file(OWN, text)
    NodeFiles(Host(spark.root), {}).adopt()
    assert f"left {OWN}: it was changed since" in list(Setup(spark.root).take_back())


@pytest.mark.parametrize(
    "edited",
    [
        f'{HEAD}[cluster]\nnodes = ["10.0.0.1","10.0.0.2"]\n',
        f'{HEAD}\n\n[engine]\n[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n',
    ],
)
def test_a_value_that_a_person_wrote_in_another_form_is_no_reason_to_stop(spark: Tree, edited: str) -> None:
    node_files = NodeFiles(Host(spark.root), {})
    node_files.write({("cluster", "nodes"): PAIR[:1]})
    spark.file(OWN, edited)
    NodeFiles(Host(spark.root), {}).adopt()
    NodeFiles(Host(spark.root), {}).write({("engine", "recipe"): "mine"})
    assert settings(spark) == {"cluster": {"nodes": PAIR}, "engine": {"recipe": "mine"}}
    spark.file(OWN, edited)
    NodeFiles(Host(spark.root), {}).adopt()
    assert f"removed {OWN}" in list(Setup(spark.root).take_back())
    assert not (spark.root / OWN.lstrip("/")).exists()


@pytest.mark.parametrize("earlier", [False, True], ids=["", "by an earlier version"])
def test_a_key_from_before_a_join_is_kept_nowhere_and_does_not_come_back(spark: Tree, earlier: bool) -> None:
    old, new = "ab" * 32, "cd" * 32
    spark.file(KEY, f"{old}\n", mode=0o600)
    node_files = NodeFiles(Host(spark.root), {})
    if earlier:
        Setup(spark.root).write(KEY, f"{new}\n", 0o600)
    node_files.write({("cluster", "nodes"): PAIR}, [KeyFile(KEY, f"{new}\n", replaces=True)])
    assert [name for name, text in files(spark).items() if old in text] == []
    assert f"removed {KEY}" in node_files.take_back()
    assert not (spark.root / KEY.lstrip("/")).exists()


def test_a_join_is_not_refused_for_nodes_that_a_person_set_before_they_are_known(spark: Tree) -> None:
    spark.file(TOML, '[cluster]\nnodes = ["10.0.0.9", "10.0.0.1"]\n')
    node_files = NodeFiles(Host(spark.root), {})
    Wizard(Wishes(plan=True), node_files, print, prompt).join("")
    equal: Values = {("cluster", "nodes"): ["10.0.0.9", "10.0.0.1"], ("cluster", "follow_head"): True}
    node_files.write(equal, new_files(KEY))
    assert settings(spark) == {"cluster": {"follow_head": True}}
    before = files(spark)
    with pytest.raises(ConfigError, match=r"sets cluster\.nodes too"):
        node_files.write({("cluster", "nodes"): PAIR}, new_files(KEY))
    assert files(spark) == before


@pytest.mark.parametrize("text", ["[cluster]\nfollow_head = false\n", '[cluster]\nnodes = ["10.0.0.9"]\n'])
def test_a_join_that_another_file_overrules_is_refused_before_the_code(spark: Tree, text: str) -> None:
    spark.file("/etc/sparkd/conf.d/theirs.toml", text)
    with pytest.raises(ConfigError, match=r"theirs\.toml sets cluster\."):
        Wizard(Wishes(plan=True), NodeFiles(Host(spark.root), {}), print, prompt).join("")


def test_a_head_gets_a_key_of_its_own_that_stays_and_is_taken_back(spark: Tree) -> None:
    node_files = NodeFiles(Host(spark.root), {})
    values: Values = {("cluster", "nodes"): PAIR}
    assert f"{HEAD_OWN}: a new key" in list(node_files.changes(values, node_files.load().settings, new_files(KEY)))
    node_files.write(values, new_files(KEY))
    own = spark.root / HEAD_OWN.lstrip("/")
    assert own.stat().st_mode & 0o7777 == 0o600
    before = own.read_text()
    assert before.split()[-1] != (spark.root / KEY.lstrip("/")).read_text().split()[-1]
    node_files.write(values, new_files(KEY))
    assert own.read_text() == before
    node_files.take_back()
    assert not own.exists(), "a new head means a new join"


def test_a_node_that_joins_keeps_the_public_key_of_the_last_head_alone(spark: Tree) -> None:
    node_files, path = NodeFiles(Host(spark.root), {}), spark.root / HEAD_PUBLIC.lstrip("/")
    for head in (b"a" * 32, b"b" * 32):
        node_files.write({("cluster", "nodes"): PAIR}, joined_files(KEY, (b"k" * 32,), (head,)))
        assert path.read_text().split()[-1] == head.hex()
        assert path.read_text().count("\n") == 2
        assert path.stat().st_mode & 0o7777 == 0o600
    node_files.take_back()
    assert not path.exists()
