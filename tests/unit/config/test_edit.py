"""Keys that earlier versions of `sparkd init` set in a person's file are taken back, and all else stays as it was."""

from __future__ import annotations

import tomllib

import pytest

from sparkd.base.config.edit import SetKey, take_back
from sparkd.base.lib.errors import ConfigError

RECIPE = """
# Name of a recipe (`sparkd recipe list`), or the absolute path of a recipe file.
recipe = "mine"
"""
NODES = """
# Fabric address of every node in rank order, such as ["10.0.0.1", "10.0.0.2"]; the first is the head. At most 8. A
# node's rank is that of the address that it owns. Empty: this node alone.
nodes = ["10.0.0.1"]
"""
CLUSTER = "\n# The nodes that serve one model together. All of them get the same values.\n[cluster]\n"
PERSONS = """\
# mine
[memory] # tight
headroom_gib = 4 # as measured

[engine]   # what runs
models_dir = "/data"   # the large disk

[engine.args]
max-model-len = 65536
"""
WRITTEN = PERSONS.replace("# what runs\n", f"# what runs\n{RECIPE}") + CLUSTER + NODES
"""As an earlier version left it."""
KEYS = (SetKey("engine", "recipe", "mine"), SetKey("cluster", "nodes", ["10.0.0.1"]))


def test_what_was_written_comes_out_without_a_trace() -> None:
    assert tomllib.loads(WRITTEN)["engine"]["recipe"] == "mine"
    assert take_back(WRITTEN, KEYS) == PERSONS


def test_a_value_that_was_replaced_where_it_stood_comes_back() -> None:
    new = PERSONS.replace('"/data"', '"/srv"')
    assert take_back(new, (SetKey("engine", "models_dir", "/srv", "/data"),)) == PERSONS


def test_what_a_person_did_since_stays() -> None:
    edited = WRITTEN.replace('recipe = "mine"', 'recipe = "other" # better').replace("# mine", "# ours")
    left = take_back(edited, KEYS)
    assert 'recipe = "other" # better' in left
    assert "cluster" not in tomllib.loads(left)
    assert left.startswith("# ours\n")
    moved = WRITTEN.replace('recipe = "mine"', 'recipe="mine"  # as it was')
    assert tomllib.loads(take_back(moved, KEYS)) == tomllib.loads(PERSONS)


def test_a_section_that_a_person_has_added_to_stays() -> None:
    left = take_back(f"{CLUSTER}{NODES}master_port = 1\n", KEYS)
    assert tomllib.loads(left) == {"cluster": {"master_port": 1}}


def test_what_is_no_toml_is_said() -> None:
    with pytest.raises(ConfigError, match="no TOML"):
        take_back("a = [", KEYS)
