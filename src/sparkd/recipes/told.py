"""Every value of a recipe with who says it: the recipe, one of its bases, the settings, the environment."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from sparkd import settings
from sparkd.flags import JsonValue
from sparkd.recipes.load import Loaded
from sparkd.settings.sources import PREFIX

TABLES = ("args", "env", "secrets")
"""What settings lay over a recipe, entry by entry."""


class Told(Struct, frozen=True):
    key: str
    value: JsonValue
    by: str
    """recipe, base, settings or environment."""
    where: str
    """File and line; a file alone for settings; the variable's name for the environment."""
    instead_of: JsonValue = None
    """What the recipe itself says."""


def told(loaded: Loaded, configured: settings.Loaded | None) -> tuple[Told, ...]:
    """In the order of the format; what nobody has set is left out."""
    own = dict(_by_recipe(loaded))
    laid = {} if configured is None else dict(_by_settings(configured, own))
    keys = [*own, *(key for key in laid if key not in own)]
    sections = [*(key.partition(".")[0] for key in own), *TABLES]
    keys.sort(key=lambda key: sections.index(key.partition(".")[0]))
    return tuple(laid.get(key) or own[key] for key in keys)


def _by_recipe(loaded: Loaded) -> Iterator[tuple[str, Told]]:
    for name, value in loaded.recipe.model_dump(mode="json", by_alias=True).items():
        entries = value.items() if isinstance(value, dict) and name != "expect" else [("", value)]
        for entry, one in entries:
            key = f"{name}.{entry}" if entry else name
            where = loaded.origins.get(key)
            if where:
                by = "recipe" if where.startswith(f"{loaded.files[0]}: ") else "base"
                yield key, Told(key, one, by, where)


def _by_settings(configured: settings.Loaded, own: dict[str, Told]) -> Iterator[tuple[str, Told]]:
    engine = configured.settings.engine
    said: dict[str, JsonValue] = {"image.ref": engine.image} if engine.image else {}
    for table in TABLES:
        said |= {f"{table}.{name}": value for name, value in getattr(engine, table).items()}
    for key, value in said.items():
        where = configured.origins["engine.image" if key == "image.ref" else f"engine.{key}"]
        by = "environment" if where.startswith(PREFIX) else "settings"
        yield key, Told(key, value, by, where, own[key].value if key in own else None)
