"""Keys are set in a person's settings file and taken back, and all else in it stays as it was."""

from __future__ import annotations

import tomllib

import pytest

from sparkd.config.edit import SetKey, set_keys, take_back
from sparkd.config.reference import default_file
from sparkd.lib.errors import ConfigError

RECIPE, NODES, DIRECTORY = ("engine", "recipe"), ("cluster", "nodes"), ("engine", "models_dir")
PERSONS = """\
# mine
[memory] # tight
headroom_gib = 4 # as measured

[engine]   # what runs
models_dir = "/data"   # the large disk

[engine.args]
max-model-len = 65536
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="no file"),
        pytest.param("# only a comment", id="no end of line"),
        pytest.param(PERSONS, id="a person's"),
        pytest.param('[engine.env]\nA = "b"\n', id="a table of a section that is not there"),
        pytest.param("[engine]", id="an empty section at the end"),
        pytest.param(default_file(), id="the default file"),
    ],
)
def test_new_keys_stand_below_their_description_and_come_out_without_a_trace(text: str) -> None:
    new, keys = set_keys(text, {RECIPE: "mine", NODES: ["10.0.0.1", "10.0.0.2"]})
    parsed = tomllib.loads(new)
    assert (parsed["engine"]["recipe"], parsed["cluster"]["nodes"]) == ("mine", ["10.0.0.1", "10.0.0.2"])
    assert keys == (SetKey("engine", "recipe", "mine"), SetKey("cluster", "nodes", ["10.0.0.1", "10.0.0.2"]))
    assert "Name of a recipe" in new[: new.index('recipe = "mine"')]
    assert all(line in new.splitlines() for line in text.splitlines())
    assert take_back(new, keys).rstrip("\n") == text.rstrip("\n")


def test_a_value_that_is_there_is_replaced_where_it_stands_and_comes_back() -> None:
    new, keys = set_keys(PERSONS, {DIRECTORY: "/srv"})
    assert 'models_dir = "/srv"   # the large disk' in new
    assert keys == (SetKey("engine", "models_dir", "/srv", "/data"),)
    assert take_back(new, keys) == PERSONS


def test_the_same_values_change_nothing() -> None:
    new, _ = set_keys(PERSONS, {RECIPE: "mine", DIRECTORY: "/data"})
    assert set_keys(new, {RECIPE: "mine", DIRECTORY: "/data"}) == (new, ())


def test_what_a_person_did_since_stays() -> None:
    new, keys = set_keys(PERSONS, {RECIPE: "mine", NODES: ["10.0.0.1"]})
    edited = new.replace('recipe = "mine"', 'recipe = "other" # better').replace("# mine", "# ours")
    left = take_back(edited, keys)
    assert 'recipe = "other" # better' in left
    assert "cluster" not in tomllib.loads(left)
    assert left.startswith("# ours\n")
    moved = new.replace('recipe = "mine"', 'recipe="mine"  # as it was')
    assert tomllib.loads(take_back(moved, keys)) == tomllib.loads(PERSONS)


def test_a_section_that_a_person_has_added_to_stays() -> None:
    new, keys = set_keys("", {NODES: ["10.0.0.1"]})
    assert tomllib.loads(take_back(new + "master_port = 1\n", keys)) == {"cluster": {"master_port": 1}}


@pytest.mark.parametrize("text", ['engine.models_dir = "/a"\n', 'engine = {models_dir = "/a"}\n'])
def test_a_file_in_another_form_is_left_to_a_person_with_the_lines_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_keys(text, {RECIPE: "mine"})
    assert caught.value.hint == 'set it by hand: [engine] recipe = "mine"'


def test_a_header_within_a_text_is_not_taken_for_a_section() -> None:
    text = '[log]\nlevel = """\n[engine]\n"""\n'
    with pytest.raises(ConfigError, match="no key can be added"):
        set_keys(text, {RECIPE: "mine"})


@pytest.mark.parametrize(
    "edit", [lambda: set_keys("a = [", {RECIPE: "x"}), lambda: take_back("a = [", (SetKey("engine", "recipe", "x"),))]
)
def test_what_is_no_toml_is_said(edit: object) -> None:
    assert callable(edit)
    with pytest.raises(ConfigError, match="no TOML"):
        edit()
