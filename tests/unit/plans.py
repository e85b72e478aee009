"""Plans of a small recipe, and of the shipped ones."""

from collections.abc import Iterable

from sparkd.base.config import Settings
from sparkd.base.lib import recipes_dir
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import parse_json

ALONE = Node(rank=0, address="127.0.0.1", head_address="127.0.0.1", cluster_size=1)
HEAD = Node(0, "10.0.0.1", "10.0.0.1", 2, "bond0", ("rocep1s0f0", "roceP2p1s0f0"))
WORKER = Node(1, "10.0.0.2", "10.0.0.1", 2, "enp1s0f0np0", ("rocep1s0f0",))


def recipe(**keys: object) -> Recipe:
    document = {"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i:1"}, **keys}
    return Recipe.model_validate(document)


def configured(**sections: object) -> Settings:
    return Settings.model_validate(sections)


def plan(node: Node = ALONE, settings: Settings | None = None, /, **keys: object) -> LaunchPlan:
    if node.cluster_size > 1:
        given = keys.get("args", {})
        assert isinstance(given, dict)
        keys["args"] = {"tensor-parallel-size": "{cluster.size}", **given}
    return make_plan(recipe(**keys), settings or Settings(), node)


def shipped(name: str) -> Recipe:
    return load_recipe(name, [recipes_dir()]).recipe


def flags(argv: Iterable[str]) -> dict[str, object]:
    """What vLLM makes of the words: JSON by its meaning, dotted flags as the mapping that they fill."""
    values: dict[str, object] = {}
    for flag, text in first_values(argv).items():
        name, dot, field = flag.partition(".")
        value = True if text is None else parse_json(text)
        value = text if value is None else value
        if dot:
            table = values.setdefault(name, {})
            assert isinstance(table, dict)
            table[field] = value
        else:
            values[name] = value
    return values
