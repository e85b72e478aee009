"""Lookup of a recipe by its name or its path."""

from pathlib import Path

import pytest
from tests.unit.recipe_files import MINIMAL_RECIPE, write

from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes, recipe_folders


def test_the_administrators_recipe_hides_the_shipped_one_and_may_extend_it(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "x", MINIMAL_RECIPE + "args: {seed: 1}\n")
    folders = [tmp_path / "etc", tmp_path / "shipped"]
    assert load_recipe("x", folders).recipe.args == {"seed": 1}
    mine = write(tmp_path / "etc", "x", "schema: 1\nname: x\nextends: x\nargs: {dtype: auto}\n")
    assert load_recipe("x", folders).recipe.args == {"seed": 1, "dtype": "auto"}
    assert find_recipes(folders) == {"x": mine}


def test_what_an_editor_keeps_beside_a_recipe_is_none(tmp_path: Path) -> None:
    mine = write(tmp_path, "x", MINIMAL_RECIPE)
    (tmp_path / ".#x.yaml").symlink_to("me@spark.812:1764370000")  # Emacs' lock
    assert find_recipes([tmp_path]) == {"x": mine}


def test_lookup_begins_below_etc_of_the_root(tmp_path: Path) -> None:
    assert recipe_folders(tmp_path) == (tmp_path / "etc/sparkd/recipes", recipes_dir())


def test_an_unknown_recipe_gives_the_nearest_name_and_the_folders(tmp_path: Path) -> None:
    write(tmp_path, "tiny-cpu", MINIMAL_RECIPE)
    with pytest.raises(ConfigError) as caught:
        load_recipe("tiny-gpu", [tmp_path, tmp_path / "absent"])
    assert "did you mean tiny-cpu?" in caught.value.reason
    assert f"{tmp_path} and {tmp_path / 'absent'}" in caught.value.reason


def test_a_path_names_a_recipe_of_any_file_name(tmp_path: Path) -> None:
    path = write(tmp_path, "some file", MINIMAL_RECIPE)
    assert load_recipe(str(path), []).recipe.name == "x"
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe(str(tmp_path / "none.yaml"), [])
