"""Explains a recipe: each value that is set, with its source."""

from collections.abc import Mapping

from msgspec import Struct

from sparkd.base import config
from sparkd.base.config.sources import PREFIX
from sparkd.base.recipes.additions import ADDED_LIMITS, added_env
from sparkd.base.recipes.loader import LoadedRecipe
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.args import TABLE_CHECKS, JsonValue


class Explained(Struct, frozen=True):
    key: str
    value: JsonValue
    by: str
    """recipe, base, settings, environment or sparkd."""
    where: str
    """File and line; a file alone for settings; the variable's name for the environment."""
    instead_of: JsonValue = None
    """The recipe's own value, where settings override it."""


def explain(loaded: LoadedRecipe, configured: config.LoadedSettings | None) -> tuple[Explained, ...]:
    """The values that are set, in the order of the format."""
    from_recipe = _explain_recipe(loaded)
    values = from_recipe if configured is None else {**from_recipe, **_explain_settings(configured, from_recipe)}
    values = {**values, **_explain_additions(loaded.recipe, configured.settings if configured else config.Settings())}
    sections = [*(key.partition(".")[0] for key in from_recipe), *TABLE_CHECKS, "container"]
    return tuple(sorted(values.values(), key=lambda value: sections.index(value.key.partition(".")[0])))


def _explain_recipe(loaded: LoadedRecipe) -> dict[str, Explained]:
    explained: dict[str, Explained] = {}
    for section, content in loaded.recipe.model_dump(mode="json", by_alias=True).items():
        inner = {f"{section}.{name}": value for name, value in content.items()} if isinstance(content, dict) else {}
        for key, value in {section: content, **inner}.items():
            if origin := loaded.origins.get(key):
                by = "recipe" if origin.path == loaded.files[0] else "base"
                explained[key] = Explained(key, value, by, str(origin))
    return explained


def _explain_additions(recipe: Recipe, settings: config.Settings) -> dict[str, Explained]:
    nodes = min(max(recipe.nodes.min, len(settings.cluster.nodes)), recipe.nodes.max)
    limits = {f"container.ulimits.{key}": ADDED_LIMITS[key] for key in ADDED_LIMITS.keys() - recipe.container.ulimits}
    values = {f"env.{name}": text for name, text in added_env(recipe, settings, nodes).items()} | limits
    added = {key: Explained(key, value, "sparkd", "null leaves it out") for key, value in values.items()}
    container, key = recipe.container, "container.shm_bytes"
    if container.shm_bytes is None and container.shm_size_bytes:
        added[key] = Explained(key, container.shm_size_bytes, "sparkd", "the recipe may give another size")
    return added


def _explain_settings(configured: config.LoadedSettings, from_recipe: Mapping[str, Explained]) -> dict[str, Explained]:
    engine, explained = configured.settings.engine, dict[str, Explained]()
    values: dict[str, JsonValue] = {"image.ref": engine.image} if engine.image else {}
    for table in TABLE_CHECKS:
        values |= {f"{table}.{name}": value for name, value in getattr(engine, table).items()}
    for key, value in values.items():
        where = configured.origins["engine.image" if key == "image.ref" else f"engine.{key}"]
        by = "environment" if where.startswith(PREFIX) else "settings"
        explained[key] = Explained(key, value, by, where, from_recipe[key].value if key in from_recipe else None)
    return explained
