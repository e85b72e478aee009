"""A configured recipe `mine`, and the known good plan of it that a rollback puts in force."""

import json
from pathlib import Path

from tests.tree import Tree
from tests.unit.known_good_entries import known_good_entry
from tests.unit.plans import configured, recipe
from tests.unit.verdicts import present

from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.state.known_good import Entry
from sparkd.base.state.switch import FILE, Switch, make_rollback

RECIPE = "/etc/sparkd/recipes/mine.yaml"
IMAGE_ID = "sha256:" + "e" * 64


def write_recipe(tree: Tree, **args: object) -> Path:
    """The configured recipe, which names another image than the good one."""
    document = {"schema": 1, "name": "mine", "model": {"path": "m"}, "image": {"ref": "i:2"}, "args": args}
    return tree.file(RECIPE, json.dumps(document))


def configure(**engine: object) -> Settings:
    return configured(engine={"recipe": "mine", **engine})


def good_entry(**engine: object) -> Entry:
    """What was good: the recipe with fewer tokens, in another image."""
    kept = recipe(name="mine", image={"ref": "i:1"}, args={"max-model-len": 512})
    section = configure(**engine).engine.model_dump(mode="json")
    return known_good_entry(recipe=kept.model_dump(mode="json", by_alias=True), engine=section, image_id=IMAGE_ID)


def put_in_force(tree: Tree, config: Settings, image: str = "", **engine: object) -> Switch:
    fingerprint = membership.fingerprint_config(config, Host(tree.root))
    switch = present(make_rollback(good_entry(**engine), fingerprint, image))
    tree.file(FILE.path, FILE.encode(switch))
    return switch
