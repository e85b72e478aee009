"""The files of a node that is set up: written, changed by a person, taken over by a join, and taken back."""

import pytest
from tests.tree import Tree
from tests.unit.tools.node_settings import KEY, OWN, PAIR, TOML, files, settings, take_back

from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli.console import prompt
from sparkd.tools.setup.choice import Wishes
from sparkd.tools.setup.cluster_key import new_files
from sparkd.tools.setup.node_files import HEADER, NodeFiles, Values
from sparkd.tools.setup.wizard import Wizard

PERSONS_NODES = '[cluster]\nnodes = ["10.0.0.9", "10.0.0.1"]\n'


@pytest.mark.parametrize("text", ["", f"at = 1\n{HEADER}", f"{HEADER}at = 1\n", f"{HEADER}[engine]\nrecipe = 'x'\n"])
def test_a_file_that_is_not_in_the_manifest_is_nothing_to_take_back(spark: Tree, text: str) -> None:
    spark.file(OWN, text)
    assert take_back(spark) == []
    assert spark.path(OWN).read_text() == text


@pytest.mark.parametrize("text", ["[engine]\nrecipe = 'x'\n", f"{HEADER}at = 1\n"])
def test_a_file_in_place_of_the_one_that_was_written_is_left(spark: Tree, text: str) -> None:
    NodeFiles(Host(spark.root), {}).write({("engine", "recipe"): "mine"})
    spark.file(OWN, text)
    assert f"left {OWN}: it was changed since" in take_back(spark)


@pytest.mark.parametrize(
    "edited",
    [
        f'{HEADER}[cluster]\nnodes = ["10.0.0.1","10.0.0.2"]\n',
        f'{HEADER}\n\n[engine]\n[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n',
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
    assert f"removed {OWN}" in take_back(spark)
    assert not spark.path(OWN).exists()


def test_a_join_is_not_refused_for_nodes_that_a_person_set_before_they_are_known(spark: Tree) -> None:
    spark.file(TOML, PERSONS_NODES)
    node_files = NodeFiles(Host(spark.root), {})
    Wizard(Wishes(plan=True), node_files, print, prompt).join("")
    equal: Values = {("cluster", "nodes"): ["10.0.0.9", "10.0.0.1"], ("cluster", "follow_head"): True}
    node_files.write(equal, new_files(KEY))
    assert settings(spark) == {"cluster": {"follow_head": True}}


def test_a_join_with_other_nodes_than_a_person_set_changes_nothing(spark: Tree) -> None:
    spark.file(TOML, PERSONS_NODES)
    node_files = NodeFiles(Host(spark.root), {})
    node_files.write({("cluster", "follow_head"): True}, new_files(KEY))
    before = files(spark)
    with pytest.raises(ConfigError, match=r"sets cluster\.nodes too"):
        node_files.write({("cluster", "nodes"): PAIR}, new_files(KEY))
    assert files(spark) == before


@pytest.mark.parametrize("text", ["[cluster]\nfollow_head = false\n", '[cluster]\nnodes = ["10.0.0.9"]\n'])
def test_a_join_that_another_file_overrules_is_refused_before_the_code(spark: Tree, text: str) -> None:
    spark.file("/etc/sparkd/conf.d/theirs.toml", text)
    with pytest.raises(ConfigError, match=r"theirs\.toml sets cluster\."):
        Wizard(Wishes(plan=True), NodeFiles(Host(spark.root), {}), print, prompt).join("")
