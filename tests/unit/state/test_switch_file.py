"""switch.json: what of a known good plan and of the configuration is kept in it."""

import json

import pytest
from msgspec.structs import replace
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import configured, recipe, shipped
from tests.unit.rollbacks import IMAGE_ID, good_entry
from tests.unit.verdicts import present

from sparkd.base.lib import recipes_dir
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.switch import FILE, fingerprint_engine, make_rollback


def test_it_is_for_root_alone() -> None:
    assert FILE.mode == 0o600


@pytest.mark.parametrize("image", ["../../containers/json?x=", "sha256:\ud800", "i:1\n"])
def test_an_image_that_is_no_id_is_never_requested(image: str) -> None:
    assert make_rollback(good_entry(), "f", image) is None
    switch = present(make_rollback(good_entry(), "f", IMAGE_ID))
    written = FILE.encode(replace(switch, to=replace(present(switch.to), image_id=image)))
    with pytest.raises(ValueError, match="image_id"):
        FILE.decode(written.encode())


@pytest.mark.parametrize("name", find_recipes([recipes_dir()]))
def test_every_shipped_recipe_comes_back_as_it_was(name: str) -> None:
    kept = json.loads(json.dumps(shipped(name).model_dump(mode="json", by_alias=True)))
    assert Recipe.model_validate(kept) == shipped(name)
    switch = present(make_rollback(known_good_entry(recipe=kept), "f", ""))
    assert FILE.decode(FILE.encode(switch).encode()) == switch


ENGINE = configured(engine={"recipe": "x"}).engine


def test_a_description_does_not_count_in_the_fingerprint() -> None:
    described = recipe(description="better", source="me")
    assert fingerprint_engine(ENGINE, described) == fingerprint_engine(ENGINE, recipe())


def test_all_that_makes_the_plan_counts_in_the_fingerprint() -> None:
    fingerprints = {
        fingerprint_engine(ENGINE, recipe()),
        fingerprint_engine(ENGINE, None),
        fingerprint_engine(ENGINE.model_copy(update={"script": "/x.sh"}), recipe()),
        fingerprint_engine(ENGINE, recipe(env={"A": "1"})),
        fingerprint_engine(ENGINE, recipe(flags={"extra": ["moe"]})),
    }
    assert len(fingerprints) == 5
