"""A recipe's plan without a node: what any would meet, from the recipe and the settings' defaults; a plan as JSON."""

from __future__ import annotations

import json

from msgspec import Struct, to_builtins

from sparkd.base.config import Settings
from sparkd.base.config.settings import MAX_NODES
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import LaunchPlan, Node
from sparkd.base.recipes.image import Lines
from sparkd.base.recipes.schema import Container, Recipe


class Trial(Struct, frozen=True):
    plan: LaunchPlan | None
    """The head's, with the fewest nodes that fit; None where none does."""
    errors: tuple[str, ...]
    """What the highest number of nodes meets."""
    warnings: tuple[str, ...]


def try_recipe(recipe: Recipe, settings: Settings | None = None, size: int | None = None) -> Trial:
    """Plan it for each number of nodes that `nodes` allows, or for `size` alone. Each message names its key."""
    plans: dict[int, LaunchPlan] = {}
    refused = f"nodes.min is {recipe.nodes.min}, and cluster.nodes names at most {MAX_NODES} nodes"
    sizes = range(recipe.nodes.min, min(recipe.nodes.max, MAX_NODES) + 1) if size is None else (size,)
    for nodes in sizes:
        # With an interface and an RDMA device each placeholder has a value.
        node = Node(0, "10.0.0.1", "10.0.0.1", nodes, "eth0", ("mlx5_0",))
        try:
            plans[nodes] = make_plan(recipe, settings or Settings(), node)
        except ConfigError as error:
            refused = f"{error.reason} ({error.hint})" if error.hint else error.reason
        if recipe.nodes.min in plans:
            break  # the others say nothing more
    warnings = []
    if plans and size is None and recipe.nodes.min not in plans and "min" in recipe.nodes.model_fields_set:
        fit = " or ".join(map(str, plans))
        warnings.append(f"nodes.min is {recipe.nodes.min}, and the recipe fits {fit} node(s) only")
    return Trial(next(iter(plans.values()), None), () if plans else (refused,), tuple(warnings))


def plan_as_json(plan: LaunchPlan) -> str:
    values = to_builtins(plan, enc_hook=_dump_model)
    return json.dumps({"schema": 1, **values, "env": dict(plan.env)}, indent=2, ensure_ascii=False)


def _dump_model(value: Container | Lines) -> dict[str, object]:
    fields = value.model_dump()
    if isinstance(value, Container):
        fields["ulimits"] = [{"name": name, **limit.model_dump()} for name, limit in value.limits.items()]
        fields["shm_bytes"] = value.shm_size_bytes
        fields["mounts"] = fields.pop("volumes")
    return fields
