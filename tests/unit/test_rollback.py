"""Rollback: the last good plan takes the place of the configured one, for every command alike, until that changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.test_known_good import entry
from tests.unit.test_plan import configured, plan, recipe

from sparkd import roles, share
from sparkd.commands import rollback as command
from sparkd.errors import ConfigError, UsageError
from sparkd.host import Host
from sparkd.known_good import history, rollback
from sparkd.known_good.choice import choose, image_id
from sparkd.known_good.rollback import Rollback, dump, fingerprint, parse
from sparkd.preflight.image import EngineImage
from sparkd.preflight.last_boot import LastBoot
from sparkd.preflight.scripts import ScriptPaths
from sparkd.recipes import load, lookup
from sparkd.recipes.schema import Recipe
from sparkd.settings import Settings

RECIPE = "/etc/sparkd/recipes/mine.yaml"
IMAGE_ID = "sha256:" + "e" * 64


def written(tree: Tree, **args: object) -> Path:
    """The recipe `mine` as a file."""
    said = {"schema": 1, "name": "mine", "model": {"path": "m"}, "image": {"ref": "i:2"}, "args": args}
    return tree.file(RECIPE, json.dumps(said))


def settings(**engine: object) -> Settings:
    return configured(engine={"recipe": "mine", **engine})


def good(**engine: object) -> history.Entry:
    """What was good: the recipe with fewer tokens, in another image."""
    kept = recipe(name="mine", image={"ref": "i:1"}, args={"max-model-len": 512})
    section = settings(**engine).engine.model_dump(mode="json")
    return entry(recipe=kept.model_dump(mode="json", by_alias=True), engine=section, image_id=IMAGE_ID)


def put_in_force(tree: Tree, config: Settings, image: str = "", **engine: object) -> Rollback:
    made = rollback.to(good(**engine), roles.fingerprint(config, Host(tree.root)), image)
    assert made is not None
    tree.file(rollback.PATH, dump(made))
    return made


def test_what_was_good_is_planned_in_the_place_of_what_is_configured(tree: Tree) -> None:
    written(tree, **{"max-model-len": 1024})
    put_in_force(tree, settings(), models_dir="/old/models", env={"A": "1"})
    node = roles.context(settings(), None, Host(tree.root))
    assert node.rollback is not None
    assert " ".join(node.plan.argv).endswith("--max-model-len 512")
    assert (node.plan.image, node.plan.model_path, dict(node.plan.env)["A"]) == ("i:1", "/old/models/m", "1")
    assert node.settings.engine.models_dir == "/old/models"
    alone = roles.configured(settings(), None, Host(tree.root))
    assert (alone.rollback, alone.plan.image) == (None, "i:2")


@pytest.mark.parametrize(
    ("args", "changed"),
    [({"max-model-len": 2048}, {}), ({"max-model-len": 1024}, {"args": {"seed": 1}}), ({}, {"image": "i:3"})],
)
def test_a_change_of_recipe_or_settings_ends_it(
    tree: Tree, args: dict[str, object], changed: dict[str, object]
) -> None:
    written(tree, **{"max-model-len": 1024})
    put_in_force(tree, settings())
    written(tree, **args)
    assert roles.context(settings(**changed), None, Host(tree.root)).rollback is None


def test_what_changes_no_plan_ends_nothing(tree: Tree) -> None:
    path = written(tree, **{"max-model-len": 1024})
    put_in_force(tree, settings(), stop_grace_seconds=5)
    path.write_text(f"# a comment\n{path.read_text()}")
    config = settings(stop_grace_seconds=99, load_readahead_kib=8)
    node = roles.context(config, None, Host(tree.root))
    assert node.rollback is not None
    # The unit is made for these.
    assert (node.settings.engine.stop_grace_seconds, node.settings.engine.load_readahead_kib) == (99, 8)


def test_the_units_drop_in_is_held_against_what_is_configured(tree: Tree) -> None:
    written(tree)
    put_in_force(tree, settings(), models_dir="/old/models")
    (paths,) = (
        one for one in roles.context(settings(), None, Host(tree.root)).checks() if isinstance(one, ScriptPaths)
    )
    (expected,) = (
        one for one in roles.configured(settings(), None, Host(tree.root)).checks() if isinstance(one, ScriptPaths)
    )
    assert paths.drop_in == expected.drop_in


def test_a_recipe_that_is_broken_or_gone_is_replaced_too_and_mending_it_ends_that(tree: Tree) -> None:
    tree.file(RECIPE, "schema: 1\nname: mine\nargs: {max_mdoel_len: 5\n")
    host = Host(tree.root)
    put_in_force(tree, settings())
    assert roles.context(settings(), None, host).plan.image == "i:1"
    (tree.root / RECIPE.lstrip("/")).unlink()
    assert roles.context(settings(), None, host).plan.image == "i:1"
    written(tree)
    assert roles.context(settings(), None, host).plan.image == "i:2"


def test_a_recipe_that_makes_no_plan_names_the_way_back_where_there_is_one(tree: Tree) -> None:
    written(tree, port="none")
    for known in ((), (good(),)):
        tree.file(history.PATH, history.dump(known))
        with pytest.raises(ConfigError, match=r"args\.port is 'none'") as raised:
            roles.context(settings(), None, Host(tree.root))
        assert ("sparkd rollback" in raised.value.hint) is bool(known)


def test_the_image_of_then_runs_by_its_id_and_the_plan_keeps_its_digest(tree: Tree) -> None:
    written(tree)
    host = Host(tree.root)
    put_in_force(tree, settings())
    by_name = roles.context(settings(), None, host).plan
    put_in_force(tree, settings(), IMAGE_ID)
    node = roles.context(settings(), None, host)
    assert (node.plan.image_to_run, node.plan.image, by_name.image_to_run) == (IMAGE_ID, "i:1", "i:1")
    assert node.plan.digest == by_name.digest, "or no other node would agree"
    (image,) = (one for one in node.checks() if isinstance(one, EngineImage))
    assert image.ref == IMAGE_ID
    assert by_name.counted_as == by_name.digest != node.plan.counted_as, "failures with another image are not its own"
    (last_boot,) = (one for one in node.checks() if isinstance(one, LastBoot))
    assert last_boot.digest == node.plan.counted_as


def test_a_plan_that_does_not_fit_any_more_is_named_as_the_rollbacks(tree: Tree) -> None:
    written(tree)
    made = put_in_force(tree, settings())
    huge = replace(made, recipe=recipe(name="mine", nodes={"min": 2, "max": 2}))
    tree.file(rollback.PATH, dump(huge))
    with pytest.raises(ConfigError, match="to which this node is rolled back") as raised:
        roles.context(settings(), None, Host(tree.root))
    assert "sparkd rollback --end" in raised.value.hint


NO_RECIPE = {"replaces": "", "proven": "", "plan": "", "image_id": "", "recipe": {"name": "x"}, "engine": {}}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"schema": 1}', "[" * 100_000, json.dumps({"schema": 1, **NO_RECIPE})],
    ids=lambda text: text[:20],
)
def test_bad_content_is_no_rollback(tree: Tree, text: str) -> None:
    written(tree)
    tree.file(rollback.PATH, text)
    assert parse(text) is None
    assert roles.context(settings(), None, Host(tree.root)).rollback is None


def test_an_image_that_is_no_id_is_asked_for_nowhere() -> None:
    made = rollback.to(good(), "f", IMAGE_ID)
    assert made is not None
    for image in ("../../containers/json?x=", "sha256:\ud800", "i:1\n"):
        assert parse(dump(replace(made, image_id=image))) is None
        assert history.parse(history.dump((replace(good(), image_id=image),))) == ()


@given(st.text())
def test_anything_is_read_without_a_traceback(text: str) -> None:
    assert parse(text) is None


def test_every_shipped_recipe_comes_back_as_it_was() -> None:
    for place in lookup.places([share.recipes()]):
        shipped = load.load(place.name, [share.recipes()]).recipe
        kept = json.loads(json.dumps(shipped.model_dump(mode="json", by_alias=True)))
        assert Recipe.model_validate(kept) == shipped
        made = rollback.to(entry(recipe=kept), "f", "")
        assert made is not None
        assert parse(dump(made)) == made


def test_the_fingerprint_counts_what_makes_the_plan_and_nothing_else() -> None:
    engine, one = settings().engine, recipe()
    assert fingerprint(engine, one) == fingerprint(engine, recipe(description="better", source="me"))
    prints = [
        fingerprint(engine, one),
        fingerprint(engine, None),
        fingerprint(settings(script="/x.sh").engine, one),
        fingerprint(engine, recipe(env={"A": "1"})),
        fingerprint(engine, recipe(flags={"extra": ["moe"]})),
    ]
    assert len(set(prints)) == len(prints)


def of(made: history.Entry, digest: str) -> history.Entry:
    return replace(made, plan=digest)


def test_the_newest_that_is_not_configured_is_chosen() -> None:
    now = plan()
    same, older, oldest = of(entry(), now.digest), of(entry(), "aa11"), of(entry(), "ab22")
    known = (same, older, oldest)
    assert choose(known, "", now, same.image_id) is older
    assert choose(known, "", now, "") is older
    assert choose(known, "", now, "sha256:other") is same, "its image is another one by now"
    assert choose(known, "", None, "") is same, "what is configured makes no plan"
    assert choose(known, "ab", now, "") is oldest
    assert choose(known, now.digest[:12], now, same.image_id) is same


def test_where_there_is_nothing_to_go_back_to_it_says_so() -> None:
    now = plan()
    for known, wanted, said in (
        ((), "", "nothing to go back to"),
        ((of(entry(), now.digest),), "", "the last known good plan itself"),
        ((entry(),), "zz", "begins with 'zz'"),
    ):
        with pytest.raises(UsageError, match=said):
            choose(known, wanted, now, "")


def test_an_image_that_is_gone_is_told_from_a_docker_that_can_not_be_asked(tree: Tree) -> None:
    host = Host(tree.root)
    assert image_id(host, "i:1") is None
    tree.dockerd()
    assert image_id(host, "i:1") == ""
    tree.docker("/images/i:1/json", {"Id": IMAGE_ID, "Architecture": "arm64", "Os": "linux", "Config": {}})
    assert image_id(host, "i:1") == IMAGE_ID


def test_the_list_marks_what_is_configured_and_what_is_in_force(tree: Tree) -> None:
    written(tree, **{"max-model-len": 1024})
    host = Host(tree.root)
    assert command.listed((), settings(), host).startswith("no start is known good on this node yet")
    put_in_force(tree, settings())
    digest = roles.configured(settings(), None, host).plan.digest
    lines = command.listed((of(good(), digest), good()), settings(), host).splitlines()
    assert lines[0].split()[:2] == ["PLAN", "RECIPE"]
    assert lines[1].startswith(digest[:12])
    assert lines[1].endswith("configured")
    assert lines[2].endswith("rolled back to")
    again = replace(good(), until="2027-01-01T00:00:00.000+00:00")
    assert command.listed((again,), settings(), host).endswith("rolled back to"), "also once it has proven itself anew"
