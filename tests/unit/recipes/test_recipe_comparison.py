"""Recipes are compared by meaning, not by notation."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plans import recipe

from sparkd.base.lib import recipes_dir
from sparkd.base.recipes.additions import BETWEEN_NODES, RAY_ENV
from sparkd.base.recipes.comparison import ORDER, Difference, compare_recipes, normalize
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe

ABOUT_ITSELF = {"schema", "name", "description", "source", "extends"}


CHECKED_ONLY = {"flags"}
"""Sections that only checks use."""


@pytest.mark.parametrize(
    ("args", "other"),
    [
        ({"gpu-memory-utilization": "0.90"}, {"gpu_memory_utilization": 0.9}),
        ({"max-model-len": 131072}, {"max-model-len": "128K"}),
        ({"kv-cache-memory-bytes": 6442450944}, {"kv-cache-memory-bytes": "6G"}),
        ({"max-model-len": "131072"}, {"max-model-len": 131072}),
        ({"seed": "1e3"}, {"seed": 1000}),
        ({"speculative-config": {"method": "mtp", "n": 2}}, {"speculative-config": '{"n": 2, "method": "mtp"}'}),
        ({"speculative-config": {"n": 2}}, {"speculative-config.n": 2}),
        ({"compilation-config": {"custom_ops": ["all"]}}, {"compilation-config": '{"custom_ops":["all"]}'}),
        ({"enable-prefix-caching": False}, {"no-enable-prefix-caching": True}),
        ({"enable-prefix-caching": True}, {"no-enable-prefix-caching": False}),
        ({"max-loras": "007"}, {"max-loras": 7}),
        ({"revision": "7"}, {"revision": 7}),
        ({"compilation-config": {}}, {"compilation-config": "{}"}),
        ({"allowed-origins": "[]"}, {"allowed-origins": " [ ] "}),
        ({"of-a-fork": "0.9"}, {"of-a-fork": 0.9}),
        ({"speculative-config.n": "0.90"}, {"speculative-config.n": 0.9}),
        ({"seed": None}, {}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_the_same_flag_in_other_words_is_no_difference(args: dict[str, object], other: dict[str, object]) -> None:
    assert compare_recipes(recipe(args=args), recipe(args=other)) == ()


@pytest.mark.parametrize(
    ("args", "other", "key", "left", "right"),
    [
        ({"a": True}, {"a": 1}, "args.a", "true", "1"),
        ({"a": True}, {"a": False}, "args.a", "true", "false"),
        ({"a": True}, {"a": "true"}, "args.a", "true", '"true"'),
        ({"a": ""}, {}, "args.a", '""', ""),
        ({"a": "128k"}, {"a": "128K"}, "args.a", '"128k"', '"128K"'),
        ({"revision": "007"}, {"revision": "7"}, "args.revision", '"007"', '"7"'),
        ({"revision": "1234e5678"}, {"revision": "9e9999"}, "args.revision", '"1234e5678"', '"9e9999"'),
        ({"a": "1234e5678"}, {"a": "9e9999"}, "args.a", '"1234e5678"', '"9e9999"'),
        ({"a": "1.10"}, {"a": "1.1"}, "args.a", '"1.10"', "1.1"),
        ({"a": "9007199254740993"}, {"a": 9007199254740992}, "args.a", "9007199254740993", "9007199254740992"),
        ({"seed": "9e9999"}, {"seed": "1e9999"}, "args.seed", '"9e9999"', '"1e9999"'),
        ({"a.b": "007"}, {"a.b": 7}, "args.a.b", '"007"', "7"),
        ({"compilation-config": {}}, {}, "args.compilation-config", "{}", ""),
        (
            {"max-num-batched-tokens": "1k"},
            {"max-num-batched-tokens": "1K"},
            "args.max-num-batched-tokens",
            "1000",
            "1024",
        ),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1, "d": 3}}}, "args.a.b.d", "2", "3"),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, "args.a", '["x", "y"]', '["y", "x"]'),
    ],
)
def test_a_difference_is_reported_by_its_innermost_key(
    args: dict[str, object], other: dict[str, object], key: str, left: str, right: str
) -> None:
    assert compare_recipes(recipe(args=args), recipe(args=other)) == (Difference(key, left, right),)


def test_a_recipe_by_another_name_is_the_same() -> None:
    other = {"name": "y", "description": "d", "source": "s"}
    assert compare_recipes(recipe(), recipe(**other)) == ()


def test_devices_volumes_and_limits_are_compared_by_what_they_are() -> None:
    container = {"devices": ["/dev/a", "/dev/b"], "ulimits": {"memlock": -1}, "volumes": ["/a:/a:ro", "/b:/b:rw"]}
    other = {
        "devices": ["/dev/b", "/dev/a"],
        "ulimits": {"memlock": {"soft": -1, "hard": -1}},
        "volumes": [{"source": "/b", "target": "/b", "read_only": False}, "/a:/a:ro"],
    }
    assert compare_recipes(recipe(container=container), recipe(container=other)) == ()


def test_the_image_comes_before_the_flags_and_figures_come_last() -> None:
    left = recipe(args={"a": 1}, env={"A": "1"}, expect={"t": 1})
    differences = compare_recipes(left, recipe(image={"ref": "i:2"}, memory_bytes=1))
    assert [difference.key for difference in differences] == [
        "image.ref",
        "args.a",
        "env.A",
        "memory_bytes",
        "expect.t",
    ]


def test_every_section_of_the_format_is_compared_or_is_about_the_recipe_itself() -> None:
    keys = {info.alias or name for name, info in Recipe.model_fields.items()}
    assert keys - ABOUT_ITSELF - CHECKED_ONLY == set(ORDER)


DERIVED = [name for name, path in find_recipes([recipes_dir()]).items() if "\nextends:" in path.read_text()]


@pytest.mark.parametrize("name", DERIVED)
def test_a_shipped_recipe_differs_from_its_base_only_in_what_it_says(name: str) -> None:
    loaded = load_recipe(name, [recipes_dir()])
    assert loaded.recipe.extends
    base = load_recipe(loaded.recipe.extends, [recipes_dir()]).recipe
    own = {key for key, origin in loaded.origins.items() if origin.path == loaded.files[0]}
    differences = compare_recipes(base, loaded.recipe)
    assert differences
    by_sparkd = {f"env.{variable}" for variable in {**RAY_ENV, **BETWEEN_NODES}}  # by executor and number of nodes
    for key in {difference.key for difference in differences} - by_sparkd:
        assert key.startswith("expect.") or any(f"{key}.".startswith(f"{written}.") for written in own)


_TEXT = st.text(st.sampled_from('ab1.0eE+-_{}[]":, kKnif'), max_size=8)


_VALUE = _TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(("a", "no-a", "a.b", "max-model-len")), _VALUE, max_size=4))
def test_any_flags_have_a_meaning_and_differ_from_none_of_themselves(args: dict[str, object]) -> None:
    any_recipe = recipe(args=args)
    assert compare_recipes(any_recipe, any_recipe) == ()
    for text in normalize(any_recipe).values():
        json.loads(text)


def test_a_cache_that_is_left_out_or_moved_is_a_difference_and_one_that_is_named_is_none() -> None:
    def differing(**keys: object) -> tuple[Difference, ...]:
        return compare_recipes(recipe(**keys), recipe())

    assert differing(caches={"triton": "/root/.triton"}) == ()
    assert differing(caches={"triton": None}) == (Difference("caches.triton", "", '"/root/.triton"'),)
    moved = differing(env={"TRITON_CACHE_DIR": "/t"})
    assert Difference("caches.triton", '"/t"', '"/root/.triton"') in moved
