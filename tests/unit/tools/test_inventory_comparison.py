"""What a worker lacks for the head's plan, judged before anything is changed."""

import pytest
from msgspec.structs import replace
from tests.unit.cluster.inventories import GOOD
from tests.unit.plans import HEAD, configured, plan

from sparkd.agent.cluster.inventory import Image, Inventory, Model
from sparkd.base.config.settings import Allow
from sparkd.base.plan.model import LaunchPlan
from sparkd.tools.node.inventory_comparison import Lack, find_missing

WANTED = plan(HEAD)


def missing(there: Inventory, wanted: LaunchPlan = WANTED) -> list[Lack]:
    """What a node with this inventory lacks for a plan that needs 100 GiB."""
    return list(find_missing(wanted, lambda _: 100 << 30, configured(), GOOD, there))


@pytest.mark.parametrize(
    ("changes", "reason", "hint"),
    [
        ({"follows": False}, "a configuration of its own", "follow_head = true"),
        ({"models": ()}, "the model m is not in its /srv/models", "sparkd model sync m"),
        ({"models": (Model("m", 5, "x is cut off"),)}, "not whole: x is cut off", "sparkd model sync m"),
        ({"models": (Model("m", 6 << 30),)}, "the model m has 6.0 GiB there", "sparkd model sync m"),
        ({"images": ()}, "image i:1 is not there", "sparkd image sync i:1"),
        ({"images": (Image("i:1", "other"),)}, "another one there", "sparkd image sync i:1"),
        ({"memory_bytes": 64 << 30}, "64.0 GiB of memory in all, 100.0 GiB needed", "smaller"),
        ({"permitted": ("j:",)}, "permits no image i:1", "cluster.allow"),
        ({"unread": ("models: a disk fails",), "models": ()}, "readable: models: a disk fails", "journal"),
        ({"unread": ("images: there are 100 or more",), "images": ()}, "readable: images: there are 100", "journal"),
        ({"unread": ("memory: no such file",), "memory_bytes": 0}, "readable: memory: no such file", "journal"),
    ],
)
def test_what_a_worker_lacks_is_named_with_the_command(changes: dict[str, object], reason: str, hint: str) -> None:
    (lack,) = missing(replace(GOOD, **changes))
    assert reason in lack.reason
    assert hint in lack.hint


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"images": (Image("i:1", "same"), Image("x:1", "other"))},
        {"unread": ("models: there are 100 or more", "images: there are 100 or more")},
    ],
)
def test_a_worker_that_has_what_the_plan_needs_lacks_nothing(changes: dict[str, object]) -> None:
    assert missing(replace(GOOD, **changes)) == []


def test_a_model_outside_of_the_folder_of_models_is_not_known_there() -> None:
    (lack,) = missing(GOOD, plan(HEAD, model={"path": "/data/m"}))
    assert "/data/m is not known" in lack.reason
    assert "below engine.models_dir" in lack.hint


def test_privileges_are_judged_by_the_workers_own_bounds() -> None:
    privileged = plan(HEAD, container={"privileged": True})
    (lack,) = missing(GOOD, privileged)
    assert "permits no a privileged container" in lack.reason
    assert missing(replace(GOOD, allow=Allow(privileged=True)), privileged) == []
