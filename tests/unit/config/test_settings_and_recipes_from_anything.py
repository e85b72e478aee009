"""Whatever stands in a file or a variable: it is good, or a ConfigError says so. Never a traceback."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.base.config import Settings, load_settings
from sparkd.base.config.sources import setting_keys
from sparkd.base.lib.errors import ConfigError
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes import loader as recipes
from sparkd.base.recipes.schema import Recipe

SCRAP = st.sampled_from(
    ["", "a", "-x", "/a", "10.0.0.1", "{node.rank}", "{node.x}", "{", "\0", "\ud800", "/a:/b:ro", "all", "0.90", "a_b",
     "a-b"]
)  # fmt: skip
SCALAR = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | SCRAP | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SCRAP, inner, max_size=2), max_leaves=5
)
VARIABLE = st.sampled_from(["SPARKD_" + "__".join(key).upper() for key in setting_keys()]) | st.sampled_from(
    ["SPARKD_", "SPARKD_X", "SPARKD_ENGINE__ARGS__A", "SPARKD_ENGINE__ENV__", "SPARKD_ENGINE__SECRETS__A"]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(VARIABLE, ANYTHING.map(json.dumps) | st.just("9" * 5000) | SCRAP, max_size=3))
def test_any_variables_are_settings_or_a_fault(env: dict[str, str]) -> None:
    try:
        assert isinstance(load_settings(env, Path("/nonexistent")), Settings)
    except ConfigError as error:
        assert all(line.startswith("SPARKD_") for line in error.reason.splitlines())


KEYS = st.sampled_from([info.alias or name for name, info in Recipe.model_fields.items()])
INNER = st.sampled_from(
    ["path", "ref", "gpus", "ulimits", "volumes", "min", "port", "host", "A", "memlock", "soft", "a_b", "a-b"]
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, ANYTHING | st.dictionaries(INNER, ANYTHING, max_size=3), max_size=5))
def test_any_recipe_gives_a_plan_or_a_fault(document: dict[str, object]) -> None:
    whole = {"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i"}, **document}
    text = json.dumps(whole)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        try:
            recipe = recipes.load_recipe(file.name, []).recipe
            make_plan(recipe, Settings(), Node(0, "127.0.0.1", "127.0.0.1", 1)).script.encode()
        except ConfigError as error:
            assert error.reason
