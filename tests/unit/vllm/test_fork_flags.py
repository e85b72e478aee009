"""Flags of a fork, which a recipe names under flags.extra: taken as args takes names, and carried to the check."""

from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.plans import ALONE, configured, recipe

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.plan_lint import PlanLint
from sparkd.base.host import Host
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.recipes.loader import load_recipe


def load(folder: Path, flags: str) -> tuple[str, ...]:
    (folder / "x.yaml").write_text(f"schema: 1\nname: x\nmodel: {{path: m}}\nimage: {{ref: i}}\nflags: {{{flags}}}\n")
    return load_recipe("x", [folder]).recipe.flags.extra


def test_a_name_may_have_underscores(tmp_path: Path) -> None:
    assert load(tmp_path, "extra: [fork_of_mine]") == ("fork-of-mine",)


def test_a_flag_of_sparkds_own_is_no_forks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to sparkd"):
        load(tmp_path, "extra: [nnodes]")


def test_a_misspelt_key_is_named_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean flags\.extra"):
        load(tmp_path, "extras: []")


@pytest.mark.parametrize(
    ("args", "level"),
    [({"fork-of-mine": 8}, Level.OK), ({"other-fork": 8}, Level.WARN), ({"max-num-seqs": "8k"}, Level.BLOCK)],
)
def test_flags_of_the_settings_are_judged_with_what_the_recipe_names(
    tree: Tree, args: dict[str, object], level: Level
) -> None:
    forked = recipe(container={"gpus": "none"}, flags={"extra": ["fork-of-mine"]})
    plan = make_plan(forked, configured(engine={"args": args}), ALONE)
    assert PlanLint(plan).run(Host(tree.root))[1].level is level
