"""Bases: what a recipe inherits by `extends`, and what it changes."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import HEAD, recipe, write

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe


@pytest.mark.parametrize(
    ("child", "build"),
    [
        ("", "make base"),
        ("image: {ref: mine}\n", ""),
        ("image: {ref: mine, build: make mine}\n", "make mine"),
        ("image: {build: make mine}\n", "make mine"),
    ],
)
def test_how_an_image_is_built_is_inherited_with_the_image_alone(tmp_path: Path, child: str, build: str) -> None:
    base = HEAD.replace("image: {ref: i}\n", "image: {ref: i, build: make base}\n")
    (tmp_path / "base.yaml").write_text(base.replace("name: r", "name: base"))
    (tmp_path / "child.yaml").write_text(f"schema: 1\nname: child\nextends: base\n{child}")
    loaded = load_recipe("child", [tmp_path])
    assert loaded.recipe.image.build == build
    assert ("image.build" in loaded.origins) == bool(build)


def test_a_recipe_changes_its_base_entry_by_entry(tmp_path: Path) -> None:
    base = HEAD.replace("name: x", "name: base") + (
        "description: of the base\nargs: {max_model_len: 1, seed: 2, a: {b: 1, c: 2}}\n"
        "env: {A: '1', B: '2'}\ncontainer: {gpus: none, shm_bytes: 5}\nexpect: {t: 1}\ncaches: {vllm: /v}\n"
    )
    write(tmp_path, "base", base)
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
    assert loaded.origins["args.max-model-len"] == f"{path}: line 5"
    assert loaded.origins["env.A"] == f"{tmp_path / 'base.yaml'}: line 7"


def test_a_fault_of_the_base_is_named_where_it_stands(tmp_path: Path) -> None:
    base = write(tmp_path, "base", HEAD.replace("name: x", "name: base") + "container:\n  gpus: some\n")
    with pytest.raises(ConfigError, match=f"{base}: line 6: "):
        recipe(tmp_path, "schema: 1\nname: x\nextends: base\n")


def test_a_circle_of_bases_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a", "schema: 1\nname: a\nextends: b\n")
    write(tmp_path, "b", "schema: 1\nname: b\nextends: a\n")
    with pytest.raises(ConfigError, match="a extends b extends a: a circle"):
        load_recipe("a", [tmp_path])
    with pytest.raises(ConfigError, match="there is no recipe x"):
        recipe(tmp_path, "schema: 1\nname: x\nextends: x\n")
