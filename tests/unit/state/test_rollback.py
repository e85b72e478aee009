"""Rollback: a known good plan replaces the configured one, for every command, until the configuration changes."""

from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.plans import recipe
from tests.unit.rollbacks import IMAGE_ID, RECIPE, configure, good_entry, put_in_force, write_recipe
from tests.unit.verdicts import present

from sparkd.agent.preflight.checks.docker import EngineImage
from sparkd.agent.preflight.checks.last_boot import LastBoot
from sparkd.agent.preflight.checks.paths import ScriptPaths
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.state import known_good
from sparkd.base.state.switch import FILE

T = TypeVar("T")


def resolve(tree: Tree, settings: Settings) -> membership.NodeContext:
    return membership.resolve_context(settings, None, Host(tree.root))


def check_of(node: membership.NodeContext, kind: type[T]) -> T:
    (check,) = (check for check in build_checks(membership.check_inputs(node)) if isinstance(check, kind))
    return check


def test_the_good_plan_replaces_the_configured_one(tree: Tree) -> None:
    write_recipe(tree, **{"max-model-len": 1024})
    added = configure(args={"enable-sleep-mode": True})
    put_in_force(tree, added, models_dir="/old/models", env={"A": "1"})
    node = resolve(tree, added)
    assert " ".join(node.plan.argv).endswith("--max-model-len 512"), "without the flag that was added"
    assert node.plan.image == "i:1"
    assert node.plan.model_path == "/old/models/m"
    assert dict(node.plan.env)["A"] == "1"
    assert node.settings.engine.models_dir == "/old/models"


def test_what_is_configured_is_still_known(tree: Tree) -> None:
    write_recipe(tree)
    put_in_force(tree, configure())
    alone = membership.make_context(configure(), Host(tree.root))
    assert alone.switch is None
    assert alone.plan.image == "i:2"


@pytest.mark.parametrize(
    ("args", "changed"),
    [({"max-model-len": 2048}, {}), ({"max-model-len": 1024}, {"args": {"seed": 1}}), ({}, {"image": "i:3"})],
)
def test_a_change_of_recipe_or_settings_ends_it(
    tree: Tree, args: dict[str, object], changed: dict[str, object]
) -> None:
    write_recipe(tree, **{"max-model-len": 1024})
    put_in_force(tree, configure())
    write_recipe(tree, **args)
    assert resolve(tree, configure(**changed)).switch is None


def test_a_change_that_changes_no_plan_ends_no_rollback(tree: Tree) -> None:
    path = write_recipe(tree, **{"max-model-len": 1024})
    put_in_force(tree, configure())
    path.write_text(f"# a comment\n{path.read_text()}")
    assert resolve(tree, configure()).switch is not None


def test_what_the_unit_is_made_for_stays_as_it_is_configured(tree: Tree) -> None:
    write_recipe(tree)
    put_in_force(tree, configure(), stop_grace_seconds=5)
    node = resolve(tree, configure(stop_grace_seconds=99, load_readahead_kib=8))
    assert node.switch is not None
    assert node.settings.engine.stop_grace_seconds == 99
    assert node.settings.engine.load_readahead_kib == 8


def test_the_units_drop_in_is_compared_with_the_configuration(tree: Tree) -> None:
    write_recipe(tree)
    put_in_force(tree, configure(), models_dir="/old/models")
    alone = membership.make_context(configure(), Host(tree.root))
    assert check_of(resolve(tree, configure()), ScriptPaths).drop_in == check_of(alone, ScriptPaths).drop_in


def test_a_recipe_that_is_broken_or_gone_is_replaced_too_and_fixing_it_ends_the_rollback(tree: Tree) -> None:
    path = tree.file(RECIPE, "schema: 1\nname: mine\nargs: {max_mdoel_len: 5\n")
    put_in_force(tree, configure())
    assert resolve(tree, configure()).plan.image == "i:1"
    path.unlink()
    assert resolve(tree, configure()).plan.image == "i:1"
    write_recipe(tree)
    assert resolve(tree, configure()).plan.image == "i:2"


@pytest.mark.parametrize("known", [(), (good_entry(),)], ids=["none", "one"])
def test_a_recipe_that_makes_no_plan_names_the_way_back_where_there_is_one(
    tree: Tree, known: tuple[known_good.Entry, ...]
) -> None:
    write_recipe(tree, port="none")
    tree.file(known_good.FILE.path, known_good.FILE.encode(known_good.KnownGood(known)))
    with pytest.raises(ConfigError, match=r"args\.port is 'none'") as raised:
        resolve(tree, configure())
    assert ("sparkd rollback" in raised.value.hint) is bool(known)


def test_the_rollbacks_image_runs_by_its_id_and_the_plan_keeps_its_digest(tree: Tree) -> None:
    write_recipe(tree)
    put_in_force(tree, configure())
    by_name = resolve(tree, configure()).plan
    put_in_force(tree, configure(), IMAGE_ID)
    node = resolve(tree, configure())
    assert by_name.image_to_run == node.plan.image == "i:1"
    assert node.plan.image_to_run == IMAGE_ID
    assert node.plan.digest == by_name.digest, "or no other node would agree"
    assert by_name.backoff_key == by_name.digest != node.plan.backoff_key, "failures with another image are not its own"
    for check in (check_of(node, EngineImage), check_of(node, LastBoot)):
        assert check.plan == node.plan


def test_a_plan_that_does_not_fit_any_more_is_named_as_the_rollbacks(tree: Tree) -> None:
    write_recipe(tree)
    switch = put_in_force(tree, configure())
    for_two = replace(present(switch.to), recipe=recipe(name="mine", nodes={"min": 2, "max": 2}))
    tree.file(FILE.path, FILE.encode(replace(switch, to=for_two)))
    with pytest.raises(ConfigError, match="chosen for this node is the plan that was good") as raised:
        resolve(tree, configure())
    assert "sparkd rollback --end" in raised.value.hint


def test_a_folder_in_place_of_the_file_is_awaited_with_what_moves_it_away(tree: Tree) -> None:
    tree.folder(FILE.path)
    with pytest.raises(AwaitedError, match="is a folder") as awaited:
        membership.load_switch(Host(tree.root), lambda _: None)
    assert awaited.value.hint == f"sudo mv {FILE.path} {FILE.path}.folder"
