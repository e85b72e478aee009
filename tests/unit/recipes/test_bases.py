"""Bases: what a recipe inherits by `extends`, and what it changes."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import load_text, write

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe

BASE = "schema: 1\nname: base\nmodel: {path: m}\n"
IMAGE = "image: {ref: i}\n"


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


def test_a_recipe_changes_its_base_entry_by_entry(tmp_path: Path) -> None:
    entries = (
        "description: of the base\nargs: {max_model_len: 1, seed: 2, a: {b: 1, c: 2}}\n"
        "env: {A: '1', B: '2'}\ncontainer: {gpus: none, shm_bytes: 5}\nexpect: {t: 1}\ncaches: {vllm: /v}\n"
    )
    write(tmp_path, "base", BASE + IMAGE + entries)
    path = write(
        tmp_path,
        "x",
        "schema: 1\nname: x\nextends: base\nargs:\n  max-model-len: 9\n  seed: null\n  a: {b: 3}\n"
        "env: {B: '3'}\ncontainer: {shm_bytes: null}\nimage: {ref: other}\n",
    )
    loaded = load_recipe("x", [tmp_path])
    assert loaded.recipe.args == {"max-model-len": 9, "seed": None, "a": {"b": 3}}
    assert loaded.recipe.env == {"A": "1", "B": "3"}
    assert (loaded.recipe.container.gpus, loaded.recipe.container.shm_bytes) == ("none", None)
    assert (loaded.recipe.image.ref, loaded.recipe.model.path) == ("other", "m")
    assert (loaded.recipe.description, dict(loaded.recipe.expect)) == ("", {})
    assert loaded.files == (path, tmp_path / "base.yaml")
    assert str(loaded.origins["args.max-model-len"]) == f"{path}: line 5"
    assert str(loaded.origins["env.A"]) == f"{tmp_path / 'base.yaml'}: line 7"


def test_a_fault_of_the_base_is_named_where_it_stands(tmp_path: Path) -> None:
    base = write(tmp_path, "base", BASE + IMAGE + "container:\n  gpus: some\n")
    with pytest.raises(ConfigError, match=f"{base}: line 6: "):
        load_text(tmp_path, "schema: 1\nname: x\nextends: base\n")


def test_a_circle_of_bases_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a", "schema: 1\nname: a\nextends: b\n")
    write(tmp_path, "b", "schema: 1\nname: b\nextends: a\n")
    with pytest.raises(ConfigError, match="a extends b extends a: a circle"):
        load_recipe("a", [tmp_path])
    with pytest.raises(ConfigError, match="there is no recipe x"):
        load_text(tmp_path, "schema: 1\nname: x\nextends: x\n")
