"""Plans a recipe without a node: what any node would meet, from the recipe alone and the settings' defaults."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from sparkd.config import Settings
from sparkd.config.settings import MAX_NODES
from sparkd.lib.errors import ConfigError
from sparkd.plan.build import make_plan
from sparkd.plan.model import LaunchPlan, Node
from sparkd.recipes.schema import Recipe
from sparkd.vllm.lint.values import find_unfilled

ADDRESS = "10.0.0.{}"
"""Of the nodes of a trial. They have an interface and an RDMA device, so that each placeholder has a value."""


class Trial(Struct, frozen=True):
    plan: LaunchPlan | None
    """Of the head with the fewest nodes that fit; None where none does."""
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def try_recipe(recipe: Recipe) -> Trial:
    """Plans it for each number of nodes that `nodes` allows. Each message names its key."""
    plans: dict[int, LaunchPlan] = {}
    refused: dict[str, str] = {}
    sizes = range(recipe.nodes.min, min(recipe.nodes.max, MAX_NODES) + 1)
    for size in sizes:
        node = Node(0, ADDRESS.format(1), ADDRESS.format(1), size, "eth0", ("mlx5_0",))
        try:
            plans[size] = make_plan(recipe, Settings(), node)
        except ConfigError as error:
            refused[error.reason] = f"{error.reason} ({error.hint})" if error.hint else error.reason
    if not sizes:
        refused[""] = f"nodes.min is {recipe.nodes.min}, and cluster.nodes names at most {MAX_NODES} nodes"
    warnings = [*_find_unfilled(recipe)]
    if plans and recipe.nodes.min not in plans and "min" in recipe.nodes.model_fields_set:
        fit = " or ".join(map(str, plans))
        warnings.append(f"nodes.min is {recipe.nodes.min}, and the recipe fits {fit} node(s) only")
    # With several reasons, each number of nodes is wrong for a reason of its own.
    errors = [] if plans else [*refused.values()][:1] if len(refused) == 1 else [_no_size(recipe, refused)]
    return Trial(next(iter(plans.values()), None), tuple(errors), tuple(warnings))


def _no_size(recipe: Recipe, refused: dict[str, str]) -> str:
    return (
        f"nodes.min {recipe.nodes.min} to nodes.max {recipe.nodes.max}: no number fits: {next(iter(refused.values()))}"
    )


def _find_unfilled(recipe: Recipe) -> Iterator[str]:
    """Placeholders where none is filled in."""
    texts = {
        "model.path": recipe.model.path,
        "model.served_name": recipe.model.served_name,
        **{f"secrets.{name}": file for name, file in recipe.secrets.items()},
        **{f"caches.{name}": target or "" for name, target in recipe.caches.items()},
    }
    volumes = (("container.volumes", f"{one.source}:{one.target}") for one in recipe.container.volumes)
    for key, text in [*texts.items(), *volumes]:
        if found := find_unfilled(text):
            yield f"{key}: {found} is taken as it stands: nothing fills it in"
