"""rollback.json: a plan that was good takes the place of the configured one, until the configuration changes.

What it replaces is kept as a fingerprint: once the configured recipe and the section `engine` are other ones, or the
recipe can be loaded where it could not, the rollback is over. What is configured then is tried.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct
from pydantic import ValidationError

from sparkd.known_good.history import in_utc, is_image_id
from sparkd.lib.text import sanitize
from sparkd.recipes.schema import Recipe
from sparkd.report.node_report import FindingReport
from sparkd.settings import Engine, Settings

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.known_good.history import Entry

FILE = "rollback.json"
PATH = f"/var/lib/sparkd/{FILE}"
LIMIT_BYTES = 4 << 20
ID = "rollback"
HINT = "change the recipe or the section engine, or: sparkd rollback --end"
AS_CONFIGURED = ("load_readahead_kib", "stop_grace_seconds")
"""How the node treats whatever engine runs: the unit is made for these, and no plan holds them."""
TELLS_ONLY = {"name", "description", "source", "extends", "expect"}
"""What a recipe says of itself."""


class Rollback(Struct, frozen=True):
    replaces: str
    """Fingerprint of what is configured."""
    proven: str
    """When the plan had proven itself last, in UTC."""
    plan: str
    """Its digest then."""
    image_id: str
    """Of its image; empty where the image of its name is to run."""
    recipe: Recipe
    engine: Engine

    @property
    def words(self) -> str:
        return f"the plan that was good on {in_utc(self.proven)} (recipe {self.recipe.name}, plan {self.plan[:12]})"

    @property
    def finding(self) -> FindingReport:
        """For the report: no check has found it."""
        return FindingReport(ID, "warn", f"instead of what is configured, {self.words} is in force", HINT)

    def over(self, settings: Settings) -> Settings:
        """The settings with its engine."""
        kept = {name: getattr(settings.engine, name) for name in AS_CONFIGURED}
        return settings.model_copy(update={"engine": self.engine.model_copy(update=kept)})


def fingerprint(engine: Engine, recipe: Recipe | None) -> str:
    """Of what is configured. None: the recipe can't be loaded, for whatever reason.

    Defaults count as not said: a later version of sparkd, which has more of them, ends no rollback.
    """
    said = {
        "engine": engine.model_dump(mode="json", exclude_defaults=True, exclude=set(AS_CONFIGURED)),
        "recipe": recipe and recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=TELLS_ONLY),
    }
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def to(entry: Entry, replaces: str, image_id: str) -> Rollback | None:
    """None where this version of sparkd can't read the entry's recipe, or its settings."""
    return _made(entry.recipe, entry.engine, replaces, entry.until, entry.plan, image_id)


def read(files: Files) -> Rollback | None:
    """None where there is none, or none that can be read."""
    try:
        return parse(files.text(PATH, LIMIT_BYTES))
    except OSError:
        return None


def dump(rollback: Rollback) -> str:
    fields = {
        "schema": 1,
        "replaces": rollback.replaces,
        "proven": rollback.proven,
        "plan": rollback.plan,
        "image_id": rollback.image_id,
        "recipe": rollback.recipe.model_dump(mode="json", by_alias=True),
        "engine": rollback.engine.model_dump(mode="json"),
    }
    return json.dumps(fields, indent=1) + "\n"


def parse(text: str) -> Rollback | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match said:
        case {"schema": 1, "replaces": str(replaces), "proven": str(proven), "plan": str(plan),
              "image_id": str(image_id), "recipe": dict(recipe), "engine": dict(engine)}:  # fmt: skip
            return _made(recipe, engine, replaces, proven, plan, image_id)
        case _:
            return None


def _made(recipe: object, engine: object, replaces: str, proven: str, plan: str, image_id: str) -> Rollback | None:
    if not is_image_id(image_id):
        return None
    try:
        return Rollback(
            replaces=replaces,
            proven=proven,
            plan=sanitize(plan, 64),
            image_id=image_id,
            recipe=Recipe.model_validate(recipe),
            engine=Engine.model_validate(engine),
        )
    except (ValidationError, RecursionError):
        return None
