"""`sparkd diff`: the facts of this start, read as far as they can be, beside those of the last known good one."""

import json

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import plan

from sparkd.base.host import Host
from sparkd.base.state.facts import Facts, find_differences, node_values
from sparkd.tools.node.known_good import as_json, as_text, gather_facts

WEIGHTS = "weights.model.safetensors"


def facts(**values: str) -> Facts:
    return Facts({**dict(plan().shared), **node_values(plan()), **values}, {}, {})


def test_without_docker_and_model_the_unread_values_are_named(tree: Tree) -> None:
    now = gather_facts(Host(tree.root), plan())
    assert now.unseen["image.identity"] == "docker is away"
    assert "/srv/models/m can't be read" in now.unseen["weights"]
    assert find_differences(facts(**{"image.identity": "i", WEIGHTS: "5 bytes"}), now) == ()


def test_the_text_names_flag_then_and_now(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    last = known_good_entry(facts=facts(**{WEIGHTS: "5 bytes"}))
    title, heads, row, unread = as_text(last, gather_facts(Host(tree.root), plan(args={"dtype": "half"}))).splitlines()
    assert title.startswith("since the last known good start (recipe x, plan d1d1d1d1d1d1")
    assert heads.split() == ["then", "now"]
    assert row.split() == ["args.dtype", "-", "half"]
    assert unread == "not compared: image.identity: docker is away"


def test_the_json_names_the_plan_and_each_difference() -> None:
    last = known_good_entry(facts=facts())
    shown = json.loads(as_json(last, facts(**{"args.dtype": "half"})))
    assert shown["known_good"]["plan"] == last.plan_digest
    assert shown["differences"] == [{"name": "args.dtype", "then": None, "now": "half"}]


def test_without_a_known_good_plan_the_json_has_none() -> None:
    assert json.loads(as_json(None, None))["known_good"] is None


def test_a_diff_without_differences_reports_that(tree: Tree) -> None:
    tree.file("/srv/models/m/model.safetensors", "12345")
    now = gather_facts(Host(tree.root), plan())
    last = known_good_entry(facts=replace(now, unseen={}))
    assert as_text(last, now).startswith("nothing that sparkd knows of differs from the last known good start")
