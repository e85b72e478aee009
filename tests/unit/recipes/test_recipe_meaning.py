"""Recipes are compared by meaning, not by notation; each value is explained with its source."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.commands import sparkd
from tests.unit.plans import recipe

from sparkd.base.config import load_with_origins
from sparkd.base.lib import recipes_dir
from sparkd.base.recipes.additions import BETWEEN_NODES, RAY_ENV
from sparkd.base.recipes.comparison import ORDER, Difference, compare_recipes, normalize
from sparkd.base.recipes.explanation import explain
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import find_recipes
from sparkd.base.recipes.schema import Recipe

ABOUT_ITSELF = {"schema", "name", "description", "source", "extends"}
CHECKED_ONLY = {"flags"}
"""Sections that only checks use."""


@pytest.mark.parametrize(
    ("one", "other"),
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
def test_the_same_flag_in_other_words_is_no_difference(one: dict[str, object], other: dict[str, object]) -> None:
    assert compare_recipes(recipe(args=one), recipe(args=other)) == ()


@pytest.mark.parametrize(
    ("one", "other", "key", "left", "right"),
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
    one: dict[str, object], other: dict[str, object], key: str, left: str, right: str
) -> None:
    assert compare_recipes(recipe(args=one), recipe(args=other)) == (Difference(key, left, right),)


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
    found = compare_recipes(
        recipe(args={"a": 1}, env={"A": "1"}, expect={"t": 1}), recipe(image={"ref": "i:2"}, memory_bytes=1)
    )
    assert [one.key for one in found] == ["image.ref", "args.a", "env.A", "memory_bytes", "expect.t"]


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
    for one in differences:
        if one.key.removeprefix("env.") in {**RAY_ENV, **BETWEEN_NODES}:
            continue  # sparkd's, by the executor and the number of nodes
        assert one.key.startswith("expect.") or any(f"{one.key}.".startswith(f"{key}.") for key in own)


_TEXT = st.text(st.sampled_from('ab1.0eE+-_{}[]":, kKnif'), max_size=8)
_VALUE = _TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(("a", "no-a", "a.b", "max-model-len")), _VALUE, max_size=4))
def test_any_flags_have_a_meaning_and_differ_from_none_of_themselves(args: dict[str, object]) -> None:
    found = recipe(args=args)
    assert compare_recipes(found, found) == ()
    for text in normalize(found).values():
        json.loads(text)


def test_each_value_is_explained_with_its_source(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "base.yaml").write_text(
        "schema: 1\nname: base\nmodel: {path: m}\nimage: {ref: i}\nargs:\n  a: 1\n  b: 2\n  c: 3\nenv: {E: '1'}\n"
    )
    (folder / "x.yaml").write_text("schema: 1\nname: x\nextends: base\nargs:\n  b: 4\n")
    file = tmp_path / "sparkd.toml"
    file.write_text('[engine.args]\nc = 5\nnew = true\n[engine.secrets]\nVLLM_API_KEY = "/k"\n')
    configured = load_with_origins(
        {"SPARKD_CONFIG": str(file), "SPARKD_ENGINE__IMAGE": "mine", "SPARKD_ENGINE__ENV__E": "2"}
    )
    by = {
        one.key: (one.value, one.by, one.where, one.instead_of)
        for one in explain(load_recipe("x", [folder]), configured)
    }
    assert by["args.a"] == (1, "base", f"{folder / 'base.yaml'}: line 6", None)
    assert by["args.b"] == (4, "recipe", f"{folder / 'x.yaml'}: line 5", None)
    assert by["args.c"] == (5, "settings", str(file), 3)
    assert by["args.new"] == (True, "settings", str(file), None)
    assert by["env.E"] == ("2", "environment", "SPARKD_ENGINE__ENV__E", "1")
    assert by["image.ref"] == ("mine", "environment", "SPARKD_ENGINE__IMAGE", "i")
    assert by["secrets.VLLM_API_KEY"] == ("/k", "settings", str(file), None)
    sections = [key.partition(".")[0] for key in by]
    assert sections == sorted(sections, key=sections.index)


def test_show_names_sparkd_as_the_origin_and_diff_sees_what_is_meant(tmp_path: Path) -> None:
    head = "schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n"
    (tmp_path / "x.yaml").write_text(f"{head}nodes: {{min: 2}}\nenv: {{VLLM_HOST_IP: null, NCCL_IB_HCA: mlx5_0}}\n")
    shown = {line.key: (line.value, line.by) for line in explain(load_recipe("x", [tmp_path]), None)}
    assert shown["env.GLOO_SOCKET_IFNAME"] == ("{node.interface}", "sparkd")
    assert shown["container.ulimits.nofile"] == (1048576, "sparkd")
    assert shown["container.ulimits.memlock"] == (-1, "sparkd")
    assert "container.shm_bytes" not in shown, "ipc is host"
    assert shown["env.VLLM_HOST_IP"] == (None, "recipe")
    assert shown["env.NCCL_IB_HCA"] == ("mlx5_0", "recipe")
    written = {"VLLM_HOST_IP": "{node.address}", "NCCL_IB_HCA": "{node.hcas}"}
    assert compare_recipes(recipe(env=written), recipe()) == ()
    differences = compare_recipes(recipe(env={"PYTORCH_CUDA_ALLOC_CONF": None}), recipe())
    assert [difference.key for difference in differences] == ["env.PYTORCH_CUDA_ALLOC_CONF"]


def test_the_size_of_a_containers_own_shared_memory_is_explained_as_sparkds(tmp_path: Path) -> None:
    text = "schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\ncontainer: {ipc: private}\n"
    (tmp_path / "x.yaml").write_text(text)
    shown = {line.key: (line.value, line.by) for line in explain(load_recipe("x", [tmp_path]), None)}
    assert shown["container.shm_bytes"] == (32 << 30, "sparkd")


def test_the_commands_print_it(tmp_path: Path) -> None:
    listed = sparkd("recipe", "list").stdout.splitlines()
    (balanced,) = (line for line in listed if line.startswith("deepseek-v4-flash-balanced "))
    for cell in ("131072", "37.2 to 105.0", "DeepSeek-V4-Flash"):
        assert cell in balanced
    differ = sparkd("recipe", "diff", "dspark-nvfp4-1m", "dspark-200k-16").stdout
    assert [line.split() for line in differ.splitlines()][:3] == [
        ["dspark-nvfp4-1m", "dspark-200k-16"],
        ["args.max-model-len", "1048576", "200000"],
        ["args.max-num-seqs", "6", "16"],
    ]
    assert sparkd("recipe", "diff", "tiny-cpu", "tiny-cpu").stdout == "tiny-cpu and tiny-cpu mean the same\n"
    config = tmp_path / "sparkd.toml"
    config.write_text("")
    shown = sparkd("recipe", "show", "tiny-cpu", config=config, SPARKD_ENGINE__ARGS__MAX_MODEL_LEN="64").stdout
    assert "args.max-model-len: 64" in shown
    assert "# environment: SPARKD_ENGINE__ARGS__MAX_MODEL_LEN, instead of 512" in shown


def test_letters_that_turn_the_line_around_are_shown_as_escapes(tmp_path: Path) -> None:
    turned, path = "/srv/\u202egolp.sh", tmp_path / "x.yaml"
    text = f'schema: 1\nname: x\nmodel: {{path: m}}\nimage: {{ref: i}}\nenv: {{A: "{turned}"}}\n'
    path.write_text(text, encoding="utf-8")
    shown = [sparkd("recipe", "show", *words, str(path)).stdout for words in ((), ("--json",))]
    assert ["\\u202e" in one for one in shown] == [True, True]
    assert [one for one in shown if "\u202e" in one] == []
    assert json.loads(shown[1])["env"] == {"A": turned}


def test_settings_that_are_wrong_hide_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "sparkd.toml").write_text("[engin]\n")
    shown = sparkd("recipe", "show", "tiny-cpu", config=tmp_path / "sparkd.toml")
    assert (shown.returncode, "args.dtype" in shown.stdout) == (0, True)
    assert "settings are left out: " in shown.stderr


WRONG = """\
schema: 2
arg: 1
model: {served_name: -x}
image: {ref: i, entrypoint: []}
nodes: {min: 0}
args:
  gpu-memory-utilization: [true]
  headless: true
  compilation-config: '{"cudagraph_mode": FULL'
  max-model-lem: 5
env: {VLLM_WORKER_MULTIPROC_METHOD: fork, A: true}
"""


def test_faults_of_the_format_hide_no_fault_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(WRONG)
    ran = sparkd("recipe", "check", str(path))
    assert ran.returncode == 78
    faults = [line.partition(": line ")[2] for line in ran.stderr.splitlines()]
    assert sorted(int(fault.partition(":")[0]) for fault in faults) == [1, 1, 2, 3, 3, 4, 5, 7, 8, 9, 10, 11]
    for needle in ("name is missing", 'model.path = ""', "--compilation-config is no JSON"):
        assert needle in ran.stderr
    assert "ShmRingBuffer" in ran.stdout
    assert "is left out" not in ran.stderr, "it is wrong instead"
    # A value that is only wrong beside another one is found once the others are put aside.
    path.write_text(
        "schema: 1\nname: y\nmodel: {path: m}\nimage: {ref: i}\nnodes: {min: x}\nexpect: {kv_cache_tokens: -1}\n"
    )
    found = sparkd("recipe", "check", str(path)).stderr
    assert "nodes.min" in found
    assert "expect.kv_cache_tokens = -1" in found


def test_a_cache_that_is_left_out_or_moved_is_a_difference_and_one_that_is_named_is_none() -> None:
    def differing(**keys: object) -> tuple[Difference, ...]:
        return compare_recipes(recipe(**keys), recipe())

    assert differing(caches={"triton": "/root/.triton"}) == ()
    assert differing(caches={"triton": None}) == (Difference("caches.triton", "", '"/root/.triton"'),)
    moved = differing(env={"TRITON_CACHE_DIR": "/t"})
    assert Difference("caches.triton", '"/t"', '"/root/.triton"') in moved
