"""Lookup of a recipe by its name or its path."""

import errno
import os
from pathlib import Path

import pytest
from tests.unit.recipe_files import MINIMAL_RECIPE, write

from sparkd.base.config import load_settings
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import AwaitedError, ConfigError, UnreadableError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_file, find_recipes, recipe_folders


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


def test_no_shipped_recipe_stands_in_for_one_that_may_come_with_its_folder(tmp_path: Path) -> None:
    """It would be another plan, and would end the choice of `sparkd use`, as after a change of what is configured."""
    folder, shipped = tmp_path / "etc", tmp_path / "shipped"
    write(shipped, "x", MINIMAL_RECIPE)
    assert find_recipes([folder, shipped]) == {"x": shipped / "x.yaml"}  # without the folder there is nothing to await
    folder.symlink_to(tmp_path / "share")
    with pytest.raises(AwaitedError, match="etc: is a link to a file that does not exist"):
        load_recipe("x", [folder, shipped])
    assert find_recipes([folder, shipped]) == {"x": shipped / "x.yaml"}  # as for a list of what is there
    mine = write(tmp_path / "share", "x", MINIMAL_RECIPE)
    assert find_file("x", [folder, shipped]).samefile(mine)


def test_a_recipe_may_come_with_the_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    """Such as one on a share whose server takes longer after a power cut; a folder that is there has all names."""
    folder = tmp_path / "recipes"
    folder.symlink_to(tmp_path / "share")
    with pytest.raises(AwaitedError, match="recipes: is a link to a file that does not exist"):
        find_file("x", [folder])
    own = write(tmp_path, "own", "schema: 1\nname: own\nextends: x\n")
    with pytest.raises(AwaitedError, match="recipes: is a link"):
        load_recipe(str(own), [folder])
    path = write(tmp_path / "share", "x", MINIMAL_RECIPE)
    assert find_file("x", [folder]).samefile(path)
    with pytest.raises(ConfigError) as caught:
        find_file("y", [folder])
    assert not isinstance(caught.value, AwaitedError)


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, UnreadableError), (errno.EACCES, ConfigError)])
def test_a_folder_whose_share_is_away_may_be_readable_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ConfigError]
) -> None:
    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "iterdir", fail)
    for read in (lambda: find_recipes([tmp_path]), lambda: load_settings({}, tmp_path)):
        (tmp_path / "etc/sparkd/conf.d").mkdir(parents=True, exist_ok=True)
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read()
        assert type(caught.value) is kind


def test_a_path_names_a_recipe_of_any_file_name(tmp_path: Path) -> None:
    path = write(tmp_path, "some file", MINIMAL_RECIPE)
    assert load_recipe(str(path), []).recipe.name == "x"
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe(str(tmp_path / "none.yaml"), [])
