"""An entry of known-good.json."""

from msgspec.structs import replace

from sparkd.base.config import Settings
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.schema import Recipe
from sparkd.base.state.facts import Facts
from sparkd.base.state.known_good import Entry

RECIPE = Recipe.model_validate({"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i:1"}})
SETTINGS = Settings.model_validate({"engine": {"recipe": "x"}})


def known_good_entry(digest: str = "d1", **changes: object) -> Entry:
    plan = make_plan(RECIPE, Settings(), Node(0, "127.0.0.1", "127.0.0.1", 1))
    made = Entry(
        since="2026-01-01T00:00:00.000+00:00",
        until="2026-01-01T00:00:00.000+00:00",
        plan_digest=digest * 16,
        agreement_digest=f"a-{digest}",
        image_id="sha256:" + "e" * 64,
        facts=Facts(dict(plan.shared), {"kernel": "6.17"}, {"boot.swap": "off"}),
        recipe=RECIPE.model_dump(mode="json", by_alias=True),
        engine=SETTINGS.engine.model_dump(mode="json"),
    )
    return replace(made, **changes)
