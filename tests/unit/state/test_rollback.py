"""Rollback: a known good plan replaces the configured one, for every command, until the configuration changes."""

import json
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import configured, plan, recipe

from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.agent.preflight.checks.last_boot import LastBoot
from sparkd.agent.preflight.checks.paths import ScriptPaths
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state import known_good
from sparkd.base.state.switch import FILE, Switch, fingerprint_engine, make_rollback
from sparkd.tools.cli import switching as command
from sparkd.tools.node.rollback import choose, roll_back
from sparkd.tools.node.switching import image_id

RECIPE = "/etc/sparkd/recipes/mine.yaml"
IMAGE_ID = "sha256:" + "e" * 64


T = TypeVar("T")


def check_of(node: membership.NodeContext, kind: type[T]) -> T:
    (found,) = (one for one in build_checks(membership.check_inputs(node)) if isinstance(one, kind))
    return found


def written(tree: Tree, **args: object) -> Path:
    """The recipe `mine` as a file."""
    recipe = {"schema": 1, "name": "mine", "model": {"path": "m"}, "image": {"ref": "i:2"}, "args": args}
    return tree.file(RECIPE, json.dumps(recipe))


def settings(**engine: object) -> Settings:
    return configured(engine={"recipe": "mine", **engine})


def good(**engine: object) -> known_good.Entry:
    """What was good: the recipe with fewer tokens, in another image."""
    kept = recipe(name="mine", image={"ref": "i:1"}, args={"max-model-len": 512})
    section = settings(**engine).engine.model_dump(mode="json")
    return known_good_entry(recipe=kept.model_dump(mode="json", by_alias=True), engine=section, image_id=IMAGE_ID)


def put_in_force(tree: Tree, config: Settings, image: str = "", **engine: object) -> Switch:
    made = make_rollback(good(**engine), membership.fingerprint_config(config, Host(tree.root)), image)
    assert made is not None
    tree.file(FILE.path, FILE.encode(made))
    return made


def test_the_good_plan_replaces_the_configured_one(tree: Tree) -> None:
    written(tree, **{"max-model-len": 1024})
    added = settings(args={"enable-sleep-mode": True})
    put_in_force(tree, added, models_dir="/old/models", env={"A": "1"})
    node = membership.resolve_context(added, None, Host(tree.root))
    assert node.switch is not None
    assert " ".join(node.plan.argv).endswith("--max-model-len 512"), "without the flag that was added"
    assert (node.plan.image, node.plan.model_path, dict(node.plan.env)["A"]) == ("i:1", "/old/models/m", "1")
    assert node.settings.engine.models_dir == "/old/models"
    assert FILE.mode == 0o600
    alone = membership.make_context(settings(), Host(tree.root))
    assert (alone.switch, alone.plan.image) == (None, "i:2")


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
    assert membership.resolve_context(settings(**changed), None, Host(tree.root)).switch is None


def test_a_change_that_changes_no_plan_ends_no_rollback(tree: Tree) -> None:
    path = written(tree, **{"max-model-len": 1024})
    put_in_force(tree, settings(), stop_grace_seconds=5)
    path.write_text(f"# a comment\n{path.read_text()}")
    config = settings(stop_grace_seconds=99, load_readahead_kib=8)
    node = membership.resolve_context(config, None, Host(tree.root))
    assert node.switch is not None
    # The unit is made for these.
    assert (node.settings.engine.stop_grace_seconds, node.settings.engine.load_readahead_kib) == (99, 8)


def test_the_units_drop_in_is_compared_with_the_configuration(tree: Tree) -> None:
    written(tree)
    put_in_force(tree, settings(), models_dir="/old/models")
    host = Host(tree.root)
    nodes = membership.resolve_context(settings(), None, host), membership.make_context(settings(), host)
    in_force, expected = (check_of(node, ScriptPaths) for node in nodes)
    assert in_force.drop_in == expected.drop_in


def test_a_recipe_that_is_broken_or_gone_is_replaced_too_and_fixing_it_ends_the_rollback(tree: Tree) -> None:
    tree.file(RECIPE, "schema: 1\nname: mine\nargs: {max_mdoel_len: 5\n")
    host = Host(tree.root)
    put_in_force(tree, settings())
    assert membership.resolve_context(settings(), None, host).plan.image == "i:1"
    (tree.root / RECIPE.lstrip("/")).unlink()
    assert membership.resolve_context(settings(), None, host).plan.image == "i:1"
    written(tree)
    assert membership.resolve_context(settings(), None, host).plan.image == "i:2"


def test_a_recipe_that_makes_no_plan_names_the_way_back_where_there_is_one(tree: Tree) -> None:
    written(tree, port="none")
    for known in ((), (good(),)):
        tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood(known)))
        with pytest.raises(ConfigError, match=r"args\.port is 'none'") as raised:
            membership.resolve_context(settings(), None, Host(tree.root))
        assert ("sparkd rollback" in raised.value.hint) is bool(known)


def test_the_rollbacks_image_runs_by_its_id_and_the_plan_keeps_its_digest(tree: Tree) -> None:
    written(tree)
    host = Host(tree.root)
    put_in_force(tree, settings())
    by_name = membership.resolve_context(settings(), None, host).plan
    put_in_force(tree, settings(), IMAGE_ID)
    node = membership.resolve_context(settings(), None, host)
    assert (node.plan.image_to_run, node.plan.image, by_name.image_to_run) == (IMAGE_ID, "i:1", "i:1")
    assert node.plan.digest == by_name.digest, "or no other node would agree"
    image = check_of(node, EngineImage)
    assert image.plan.image_to_run == IMAGE_ID
    assert by_name.backoff_key == by_name.digest != node.plan.backoff_key, "failures with another image are not its own"
    last_boot = check_of(node, LastBoot)
    assert last_boot.plan == node.plan


def test_a_plan_that_does_not_fit_any_more_is_named_as_the_rollbacks(tree: Tree) -> None:
    written(tree)
    made = put_in_force(tree, settings())
    assert made.to is not None
    huge = replace(made, to=replace(made.to, recipe=recipe(name="mine", nodes={"min": 2, "max": 2})))
    tree.file(FILE.path, FILE.encode(huge))
    with pytest.raises(ConfigError, match="chosen for this node is the plan that was good") as raised:
        membership.resolve_context(settings(), None, Host(tree.root))
    assert "sparkd rollback --end" in raised.value.hint


NO_RECIPE = {"replaces": "", "proven": "", "plan": "", "image_id": "", "recipe": {"name": "x"}, "engine": {}}


def test_bad_content_is_no_rollback(tree: Tree) -> None:
    written(tree)
    nested = {"replaces": "", "stage": "in-force", "to": NO_RECIPE}
    for text in ("", "[" * 100_000, json.dumps({"schema": 1, **NO_RECIPE}), json.dumps({"schema": 1, **nested})):
        tree.file(FILE.path, text)
        assert membership.resolve_context(settings(), None, Host(tree.root)).switch is None


def test_an_image_that_is_no_id_is_never_requested() -> None:
    made = make_rollback(good(), "f", IMAGE_ID)
    assert made is not None
    assert made.to is not None
    for image in ("../../containers/json?x=", "sha256:\ud800", "i:1\n"):
        with pytest.raises(ValueError, match="image_id"):
            FILE.decode(FILE.encode(replace(made, to=replace(made.to, image_id=image))).encode())
        assert make_rollback(good(), "f", image) is None


def test_every_shipped_recipe_comes_back_as_it_was() -> None:
    for name in find_recipes([recipes_dir()]):
        shipped = load_recipe(name, [recipes_dir()]).recipe
        kept = json.loads(json.dumps(shipped.model_dump(mode="json", by_alias=True)))
        assert Recipe.model_validate(kept) == shipped
        made = make_rollback(known_good_entry(recipe=kept), "f", "")
        assert made is not None
        assert FILE.decode(FILE.encode(made).encode()) == made


def test_the_fingerprint_counts_what_makes_the_plan_and_nothing_else() -> None:
    engine, same = settings().engine, recipe()
    assert fingerprint_engine(engine, same) == fingerprint_engine(engine, recipe(description="better", source="me"))
    prints = [
        fingerprint_engine(engine, same),
        fingerprint_engine(engine, None),
        fingerprint_engine(settings(script="/x.sh").engine, same),
        fingerprint_engine(engine, recipe(env={"A": "1"})),
        fingerprint_engine(engine, recipe(flags={"extra": ["moe"]})),
    ]
    assert len(set(prints)) == len(prints)


def of(made: known_good.Entry, digest: str) -> known_good.Entry:
    return replace(made, plan_digest=digest)


def test_the_newest_that_is_not_configured_is_chosen() -> None:
    now = plan()
    same, older, oldest = (
        of(known_good_entry(), now.digest),
        of(known_good_entry(), "aa11"),
        of(known_good_entry(), "ab22"),
    )
    known = (same, older, oldest)
    assert choose(known, "", now, same.image_id) is older
    assert choose(known, "", now, "") is older
    assert choose(known, "", now, "sha256:other") is same, "its image is another one"
    assert choose(known, "", None, "") is same, "what is configured makes no plan"
    assert choose(known, "ab", now, "") is oldest
    assert choose(known, now.digest[:12], now, same.image_id) is same


def test_without_a_plan_to_go_back_to_it_fails() -> None:
    now = plan()
    for known, wanted, reason in (
        ((), "", "nothing to go back to"),
        ((of(known_good_entry(), now.digest),), "", "the last known good plan itself"),
        ((known_good_entry(),), "zz", "begins with 'zz'"),
    ):
        with pytest.raises(UsageError, match=reason):
            choose(known, wanted, now, "")


def test_a_missing_image_differs_from_an_unreachable_docker(tree: Tree) -> None:
    host = Host(tree.root)
    assert image_id(host, "i:1") is None
    tree.dockerd()
    assert image_id(host, "i:1") == ""
    tree.docker("/images/i:1/json", {"Id": IMAGE_ID, "Architecture": "arm64", "Os": "linux", "Config": {}})
    assert image_id(host, "i:1") == IMAGE_ID


def test_the_list_marks_what_is_configured_and_what_is_in_force(tree: Tree) -> None:
    written(tree, **{"max-model-len": 1024})
    host = Host(tree.root)
    assert command.list_plans((), settings(), host).rows[1:] == []
    put_in_force(tree, settings())
    digest = membership.make_context(settings(), host).plan.digest
    _, first, second = command.list_plans((of(good(), digest), good()), settings(), host).rows
    assert (first[0], first[-1]) == (digest[:12], "configured")
    assert second[-1] == "rolled back to"
    again = replace(good(), until="2027-01-01T00:00:00.000+00:00")
    assert command.list_plans((again,), settings(), host).rows[1][-1] == "rolled back to", (
        "also once it has proven itself again"
    )


@pytest.mark.parametrize("digest", ["", f"x/i@sha256:{'a' * 64}"])
def test_a_recorded_image_that_is_gone_is_pulled_by_its_digest(tree: Tree, digest: str) -> None:
    written(tree)
    tree.dockerd()
    entry = replace(good(), image_digest=digest)
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood((entry,))))
    lines = list(roll_back("", settings(), Host(tree.root)))
    assert f"the recorded image, {IMAGE_ID}, is not on this node any more: the one that has its name will run" in lines
    pull = f"to run the recorded one: sudo docker pull {digest} && sudo sparkd rollback {entry.plan_digest[:12]}"
    assert (pull in lines) is bool(digest)
