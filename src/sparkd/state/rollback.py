"""rollback.json: a known good plan replaces the configured one, until the configuration changes.

The file has a fingerprint of the configured recipe and of the section `engine`. Once either changes, or the recipe can
be loaded again, the rollback is over and the configured plan is tried.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.config import Engine, Settings
from sparkd.recipes.schema import Recipe
from sparkd.state.file import StateFile
from sparkd.state.known_good import ImageId, Plain, format_utc
from sparkd.status.model import FindingReport

if TYPE_CHECKING:
    from sparkd.state.known_good import Entry

HINT = "change the recipe or the section engine, or: sparkd rollback --end"
AS_CONFIGURED = ("load_readahead_kib", "stop_grace_seconds")
"""How the node treats any engine: the unit is made for these settings, and no plan has them."""
DESCRIPTION = {"name", "description", "source", "extends", "expect"}
"""Fields of a recipe that do not change the engine."""


class Rollback(Struct, frozen=True):
    replaces: str
    proven: str
    """When the plan was last proven, in UTC."""
    plan: Plain
    """Digest of the plan when it was proven."""
    image_id: ImageId
    """Empty: run the image that has the name now."""
    recipe: Recipe
    engine: Engine

    @property
    def label(self) -> str:
        return f"the plan that was good on {format_utc(self.proven)} (recipe {self.recipe.name}, plan {self.plan[:12]})"

    @property
    def finding(self) -> FindingReport:
        return FindingReport("rollback", "warn", f"instead of what is configured, {self.label} is in force", HINT)

    def apply_to(self, settings: Settings) -> Settings:
        kept = {name: getattr(settings.engine, name) for name in AS_CONFIGURED}
        return settings.model_copy(update={"engine": self.engine.model_copy(update=kept)})


FILE = StateFile("rollback.json", Rollback)


def make_rollback(entry: Entry, replaces: str, image_id: str) -> Rollback | None:
    """None where this version of sparkd can't read the entry's recipe or settings."""
    fields = {"replaces": replaces, "proven": entry.until, "plan": entry.plan, "image_id": image_id}
    try:
        return FILE.convert({**fields, "recipe": entry.recipe, "engine": entry.engine})
    except ValueError:
        return None


def fingerprint_engine(engine: Engine, recipe: Recipe | None) -> str:
    """Of the configuration. `recipe` None: it can't be loaded.

    Defaults are left out: a later version of sparkd, which has more of them, ends no rollback.
    """
    configured = {
        "engine": engine.model_dump(mode="json", exclude_defaults=True, exclude=set(AS_CONFIGURED)),
        "recipe": recipe and recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=DESCRIPTION),
    }
    return sha256(json.dumps(configured, sort_keys=True).encode()).hexdigest()
