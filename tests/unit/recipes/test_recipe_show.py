"""`sparkd recipe show`, `list` and `diff`: each value with its source."""

import json
from pathlib import Path

from tests.unit.commands import sparkd
from tests.unit.plans import recipe

from sparkd.base.config import load_with_origins
from sparkd.base.recipes.comparison import compare_recipes
from sparkd.base.recipes.explanation import Explained, explain
from sparkd.base.recipes.loader import load_recipe


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
    explained = explain(load_recipe("x", [folder]), configured)
    for expected in (
        Explained("args.a", 1, "base", f"{folder / 'base.yaml'}: line 6"),
        Explained("args.b", 4, "recipe", f"{folder / 'x.yaml'}: line 5"),
        Explained("args.c", 5, "settings", str(file), 3),
        Explained("args.new", True, "settings", str(file)),
        Explained("env.E", "2", "environment", "SPARKD_ENGINE__ENV__E", "1"),
        Explained("image.ref", "mine", "environment", "SPARKD_ENGINE__IMAGE", "i"),
        Explained("secrets.VLLM_API_KEY", "/k", "settings", str(file)),
    ):
        assert expected in explained
    sections = [value.key.partition(".")[0] for value in explained]
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
    assert all("\\u202e" in text for text in shown)
    assert not any("\u202e" in text for text in shown)
    assert json.loads(shown[1])["env"] == {"A": turned}


def test_settings_that_are_wrong_hide_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "sparkd.toml").write_text("[engin]\n")
    shown = sparkd("recipe", "show", "tiny-cpu", config=tmp_path / "sparkd.toml")
    assert shown.returncode == 0
    assert "args.dtype" in shown.stdout
    assert "settings are left out: " in shown.stderr
