"""Bases: what a recipe inherits by `extends`, and what it changes."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import load_text, write

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import LoadedRecipe, load_recipe

BASE = "schema: 1\nname: base\nmodel: {path: m}\n"
IMAGE = "image: {ref: i}\n"
RICH_BASE = f"""\
{BASE}{IMAGE}\
description: of the base
args:
  max_model_len: 1
  seed: 2
  a: {{b: 1, c: 2}}
env:
  A: '1'
  B: '2'
container:
  gpus: none
  shm_bytes: 5
expect:
  t: 1
caches:
  vllm: /v
  triton: /u
"""
CHILD = """\
schema: 1
name: child
extends: base
image:
  ref: other
args:
  max-model-len: 9
  seed: null
  a: {b: 3}
env:
  B: '3'
container:
  shm_bytes: null
caches:
  triton: /t
"""


def line_of(line: str, text: str) -> int:
    return text.splitlines().index(line) + 1


@pytest.mark.parametrize(
    ("image", "ref", "build"),
    [
        ("", "i", "make base"),
        ("image: {ref: mine}\n", "mine", ""),
        ("image: {ref: mine, build: make mine}\n", "mine", "make mine"),
        ("image: {build: make mine}\n", "i", "make mine"),
    ],
)
def test_how_an_image_is_built_is_inherited_with_the_image_alone(
    tmp_path: Path, image: str, ref: str, build: str
) -> None:
    write(tmp_path, "base", BASE + "image: {ref: i, build: make base}\n")
    write(tmp_path, "child", f"schema: 1\nname: child\nextends: base\n{image}")
    loaded = load_recipe("child", [tmp_path])
    assert (loaded.recipe.image.ref, loaded.recipe.image.build) == (ref, build)
    assert ("image.build" in loaded.origins) == bool(build)


@pytest.fixture
def inherited(tmp_path: Path) -> LoadedRecipe:
    """A child that changes some entries of its base."""
    write(tmp_path, "base", RICH_BASE)
    write(tmp_path, "child", CHILD)
    return load_recipe("child", [tmp_path])


def test_a_recipe_changes_its_base_entry_by_entry(inherited: LoadedRecipe) -> None:
    recipe = inherited.recipe
    assert recipe.args == {"max-model-len": 9, "seed": None, "a": {"b": 3}}, "an argument is replaced as a whole"
    assert recipe.env == {"A": "1", "B": "3"}
    assert (recipe.image.ref, recipe.model.path) == ("other", "m")
    assert recipe.caches == {"vllm": "/v", "triton": "/t"}


def test_null_takes_the_bases_value_away(inherited: LoadedRecipe) -> None:
    assert inherited.recipe.args["seed"] is None
    assert (inherited.recipe.container.gpus, inherited.recipe.container.shm_bytes) == ("none", None)


def test_a_description_and_expected_results_are_not_inherited(inherited: LoadedRecipe) -> None:
    assert (inherited.recipe.description, dict(inherited.recipe.expect)) == ("", {})


def test_the_files_of_a_recipe_are_its_own_and_its_bases(inherited: LoadedRecipe, tmp_path: Path) -> None:
    assert inherited.files == (tmp_path / "child.yaml", tmp_path / "base.yaml")


def test_an_entry_is_known_by_the_file_and_line_that_it_is_from(inherited: LoadedRecipe, tmp_path: Path) -> None:
    own, of_base = line_of("  max-model-len: 9", CHILD), line_of("  A: '1'", RICH_BASE)
    assert str(inherited.origins["args.max-model-len"]) == f"{tmp_path / 'child.yaml'}: line {own}"
    assert str(inherited.origins["env.A"]) == f"{tmp_path / 'base.yaml'}: line {of_base}"


def test_a_fault_of_the_base_is_named_where_it_stands(tmp_path: Path) -> None:
    text = BASE + IMAGE + "container:\n  gpus: some\n"
    base = write(tmp_path, "base", text)
    with pytest.raises(ConfigError, match=f"{base}: line {line_of('  gpus: some', text)}: "):
        load_text(tmp_path, "schema: 1\nname: x\nextends: base\n")


def test_a_circle_of_bases_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a", "schema: 1\nname: a\nextends: b\n")
    write(tmp_path, "b", "schema: 1\nname: b\nextends: a\n")
    with pytest.raises(ConfigError, match="a extends b extends a: a circle"):
        load_recipe("a", [tmp_path])


def test_a_recipe_is_no_base_of_its_own(tmp_path: Path) -> None:
    """`extends` with its own name is for one of that name in a folder with a lower rank; here is none."""
    with pytest.raises(ConfigError, match="there is no recipe x"):
        load_text(tmp_path, "schema: 1\nname: x\nextends: x\n")
