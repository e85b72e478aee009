"""What the engine opens to the network: an API on all addresses needs a key."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.ports import Listeners, ListenersFacts
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node, Secret
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders


def pair_plan() -> LaunchPlan:
    recipe = load_recipe("deepseek-v4-flash-balanced", recipe_folders(Path("/"))).recipe
    return make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", 2, "enp1s0f0np0", ("rocep1s0f0",)))


KEY = {"env": (("VLLM_API_KEY", "x"),)}


@pytest.mark.parametrize(
    ("host", "changed", "level"),
    [
        *((host, {}, Level.WARN) for host in ("--host=0.0.0.0", "--host=::", "--host=0:0::0", "--host")),
        ("--served-model-name=x", {}, Level.WARN),
        ("--host=0.0.0.0", KEY, Level.OK),
        ("--host=0.0.0.0", {"secrets": (Secret("VLLM_API_KEY", "/etc/sparkd/api.key"),)}, Level.OK),
        *((host, {}, Level.OK) for host in ("--api-key=x", "--host=10.0.0.1", "--host=127.0.0.1")),
        ("--host=spark1.lan", {}, Level.OK),
    ],
)
def test_an_api_on_all_addresses_wants_a_key(host: str, changed: dict[str, object], level: Level) -> None:
    plan = replace(pair_plan(), argv=("vllm", "serve", host), api_port=8123, **changed)
    facts = ListenersFacts((22,))
    verdict = Listeners(plan).judge(facts)
    expect(verdict, level, "port 8123")
    assert ("29501" in verdict.reason) is (level is Level.OK)
    assert Listeners(replace(plan, node=replace(plan.node, rank=1))).judge(facts).level is Level.OK
    alone = Listeners(replace(plan, node=replace(plan.node, cluster_size=1))).judge(facts)
    assert alone.level is level, "one node is as open"
    assert "29501" not in alone.reason


def test_a_program_that_listens_on_all_addresses_is_evidence(tree: Tree) -> None:
    tree.listening((22, 1), (9100, 2))
    check = Listeners(replace(pair_plan(), argv=("vllm", "serve", "--host", "10.0.0.1")))
    facts = check.probe(Host(tree.root))
    assert facts == ListenersFacts((22, 9100))
    assert check.judge(facts).level is Level.OK
