"""Recipes: schema 1, bases, lookup; every fault is named with file and line."""

import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes import schema
from sparkd.base.recipes.image import Lines
from sparkd.base.recipes.loader import find_recipes, load_recipe, parse_document, recipe_folders
from sparkd.base.recipes.yaml import YamlError, parse_yaml

PUBLISHED = json.loads(schema.json_schema())
HEAD = "schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n"


def of_model(path: str) -> str:
    return HEAD.replace("path: m", f"path: {path}")


def complaints(document: object) -> list[str]:
    """Of an editor that applies the published JSON Schema."""
    return [error.message for error in Draft202012Validator(PUBLISHED).iter_errors(document)]


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def recipe(folder: Path, text: str) -> schema.Recipe:
    write(folder, "x", text)
    return load_recipe("x", [folder]).recipe


@pytest.mark.parametrize("name", find_recipes([recipes_dir()]))
def test_the_random_models_of_the_tests_are_declared_and_no_others(name: str) -> None:
    declared = load_recipe(name, [recipes_dir()]).recipe.model.random_weights
    assert declared is name.startswith("tiny-")


@pytest.mark.parametrize("name", find_recipes([recipes_dir()]))
def test_every_shipped_recipe_is_whole_and_says_its_source(name: str) -> None:
    shipped = load_recipe(name, [recipes_dir()])
    assert shipped.recipe.name == name
    assert shipped.recipe.source
    assert shipped.recipe.description
    assert not complaints(yaml.safe_load(shipped.files[0].read_text()))


def test_the_balanced_recipe_is_that_of_its_source() -> None:
    args = load_recipe("deepseek-v4-flash-balanced", [recipes_dir()]).recipe.args
    assert (args["max-model-len"], args["max-num-seqs"], args["enable-expert-parallel"]) == (131072, 8, True)
    assert (args["max-num-batched-tokens"], args["gpu-memory-utilization"]) == (16384, "0.90")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.90", "0.90"),
        ("1e-5", "1e-5"),
        ("012", "012"),
        ("1_000", "1_000"),
        ("0x1F", "0x1F"),
        ("131072", 131072),
        ("-1", -1),
        ("0.5", 0.5),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("''", ""),
        ("'true'", "true"),
        ("1:30", "1:30"),
        (".inf", ".inf"),
        ("9" * 400, "9" * 400),
        ("'{node.address}'", "{node.address}"),
        ("[1, a, 0.90]", [1, "a", "0.90"]),
        ("{a: 0.90, b: [0x10, null, {c: no}]}", {"a": 0.9, "b": [16, None, {"c": "no"}]}),
        ("|-\n    two\n    lines", "two\nlines"),
        ("{a: .nan}", {"a": ".nan"}),
    ],
)
def test_a_flags_value_is_what_was_written(tmp_path: Path, written: str, value: object) -> None:
    assert recipe(tmp_path, f"{HEAD}args:\n  a_b: {written}\n").args == {"a-b": value}


@pytest.mark.parametrize(
    ("written", "value"), [("12.10", "12.10"), ("8", "8"), ("08", "08"), ("12.1a", "12.1a"), ("~", None)]
)
def test_a_variable_keeps_the_text_of_a_number(tmp_path: Path, written: str, value: str | None) -> None:
    assert recipe(tmp_path, f"{HEAD}env:\n  A: {written}\n").env == {"A": value}


@pytest.mark.parametrize(
    ("text", "line", "needles"),
    [
        ("schema: [", 1, ["expected node content"]),
        ("", 1, ["must be a mapping"]),
        ("- 1\n", 1, ["must be a mapping"]),
        ("--- 1\n--- 2\n", 2, ["another document"]),
        (f"{HEAD}a: \x01\n", 5, ["not allowed"]),
        (f"{HEAD}env:\n  A: 1\n  A: 2\n", 7, ["env.A is given twice"]),
        (f"{HEAD}env: &e\n  A: 1\nargs: *e\n", 5, ["alias"]),
        (f"{HEAD}env:\n  <<: {{A: 1}}\n", 6, ["extends"]),
        (f"{HEAD}env:\n  A: !!python/name:os.system x\n", 6, ["tag", "not known"]),
        (f"{HEAD}env: {{A: &a x, B: &a y}}\n", 5, ["give each &name once"]),
        (f"{HEAD}env:\n  A: !%C0%80 x\n", 1, ["codec can't decode"]),
        (f"{HEAD}env:\n  A: 2026-01-01\n", 6, ["date", "quotes"]),
        (f"{HEAD}env:\n  A: true\n", 6, ["A is True", "quotes"]),
        (f"{HEAD}env:\n  A B: 1\n", 6, ["no name of an environment variable"]),
        (f"{HEAD}env:\n  PPID: 1\n", 6, ["belongs to the shell"]),
        (f'{HEAD}env:\n  A: "\\0"\n', 6, ["NUL"]),
        (f'{HEAD}env:\n  A: "\\ud800"\n', 6, ["Unicode"]),
        (f"{HEAD}env:\n  HF_TOKEN: hf_1\n", 6, ["looks like a secret"]),
        (f"{HEAD}env: 3\n", 5, ["env = 3", "mapping"]),
        (f"{HEAD}args:\n- --seed=1\n", 5, ["write NAME: VALUE lines below args:, such as max-num-seqs: 4"]),
        (f"{HEAD}container: []\n", 5, ["must be a mapping: write NAME: VALUE lines below container:"]),
        (f"{HEAD}arg: {{}}\n", 5, ["arg: there is no such key", "did you mean args?"]),
        (f"{HEAD}container:\n  gpu: all\n", 6, ["container.gpu", "did you mean container.gpus?"]),
        (f"{HEAD}container:\n  gpus: some\n", 6, ['container.gpus = "some"', "'all' or 'none'"]),
        (f"{HEAD}container:\n  network: bridge\n", 6, ["'host'"]),
        (f"{HEAD}container:\n  shm_bytes: 64g\n", 6, ['"64g"', "a number of bytes: 68719476736"]),
        (f"{HEAD}container:\n  privileged: 1\n", 6, ["boolean"]),
        (f"{HEAD}container:\n  ulimits: {{memlok: 1}}\n", 6, ["memlok", "'memlock'"]),
        (f"{HEAD}container:\n  ulimits: {{memlock: {{soft: 1, hard: -2}}}}\n", 6, ["greater than or equal to -1"]),
        (f"{HEAD}container:\n  devices:\n  - /dev/a\n  - dev/b\n", 8, ["devices.[1]", "absolute path"]),
        (f"{HEAD}container:\n  volumes: [/a:/b]\n", 6, ["SOURCE:TARGET:ro"]),
        (f"{HEAD}container:\n  volumes: ['/a:/models/x:ro']\n", 6, ["sparkd's own"]),
        *(
            (f"{HEAD}container:\n  volumes: ['/a:{target}:ro']\n", 6, ["the system's own"])
            for target in ("/run", "/run/x", "/proc", "/proc/sys", "/dev/shm", "/sys", "//sys/fs", "/./dev")
        ),
        (f"{HEAD}container:\n  volumes: ['/a:/:ro']\n", 6, ["sparkd's own"]),
        (f"{HEAD}caches:\n  vllm: /dev/shm/c\n", 6, ["the system's own"]),
        (f"{HEAD}container:\n  volumes: ['/a:/b:ro', '/c:/b:rw']\n", 6, ["mounted twice"]),
        (f"{HEAD}caches:\n  Vllm: /c\n", 6, ["short name"]),
        (f"{HEAD}caches:\n  vllm: c\n", 6, ["absolute path"]),
        (f"{HEAD}args:\n  max_model_len: 1\n  max-model-len: 1\n", 7, ["--max-model-len is given twice"]),
        (f"{HEAD}args:\n  node_rank: 1\n", 6, ["--node-rank belongs to sparkd"]),
        (f"{HEAD}args:\n  headless: true\n", 6, ["--headless belongs to sparkd"]),
        (f"{HEAD}args:\n  distributed-executor-backend: ray\n", 6, ["executor"]),
        (f"{HEAD}args:\n  served-model-name: a\n", 6, ["model.served_name"]),
        (f"{HEAD}args:\n  api-key: a\n", 6, ["VLLM_API_KEY"]),
        (f"{HEAD}args:\n  nnodes.x: 1\n", 6, ["--nnodes.x belongs to sparkd"]),
        (f"{HEAD}args:\n  no_headless.x: 1\n", 6, ["--no-headless.x belongs to sparkd"]),
        (f"{HEAD}args:\n  ssl_certfile: /c\n", 6, ["--ssl-certfile", "plain HTTP"]),
        (f"{HEAD}args:\n  ssl-keyfile: /k\n", 6, ["--ssl-keyfile", "plain HTTP"]),
        (f"{HEAD}args:\n  uds: /s\n", 6, ["--uds", "over TCP"]),
        (f"{HEAD}args:\n  config: /f\n", 6, ["--config", "a file of flags"]),
        (f"{HEAD}args:\n  --seed: 1\n", 6, ["no flag name"]),
        (f"{HEAD}args:\n  'a b': 1\n", 6, ["no flag name"]),
        (f"{HEAD}args:\n  a: [-x]\n", 6, ["starts with a dash"]),
        (f"{HEAD}args:\n  a: []\n", 6, ["empty list"]),
        (f"{HEAD}args:\n  a: [[1]]\n", 6, ["only text and numbers"]),
        (f"{HEAD}nodes: {{min: 3, max: 2}}\n", 5, ["at most nodes.max"]),
        (f"{HEAD}executor: mpi\n", 5, ["'mp' or 'ray'"]),
        (f"{HEAD}memory_bytes: 0\n", 5, ["memory_bytes = 0"]),
        ("schema: 2\nname: x\nmodel: {path: m}\nimage: {ref: i}\n", 1, ["schema = 2", "must be 1"]),
        ("name: x\nmodel: {path: m}\nimage: {ref: i}\n", 1, ["schema is missing"]),
        ("schema: 1\nname: y\nmodel: {path: m}\nimage: {ref: i}\n", 2, ['"y"', "the file's name"]),
        (of_model("../m"), 3, ["model.path", "no .."]),
        *((of_model(path), 3, ["model.path", "whole file system"]) for path in ("/", "//", "/.")),
        (of_model("m, served_name: -x"), 3, ["served_name", "must not begin with a dash"]),
        (of_model("m, served_name: ' '"), 3, ["served_name", "must be a name"]),
        (of_model("a//b"), 3, ["plain path"]),
        ("schema: 1\nname: x\nimage: {ref: i}\n", 1, ["model.path", "must name the model's folder"]),
        ("schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i, entrypoint: []}\n", 4, ["must name a program"]),
    ],
)
def test_each_fault_names_file_line_and_need(tmp_path: Path, text: str, line: int, needles: list[str]) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    (reason,) = caught.value.reason.splitlines()
    for needle in (f"{path}: line {line}: ", *needles):
        assert needle in reason
    assert "hf_1" not in reason


@pytest.mark.parametrize("target", ["/runs", "/srv/run", "/device", "/system"])
def test_a_target_beside_the_systems_own_is_good(tmp_path: Path, target: str) -> None:
    (volume,) = recipe(tmp_path, f"{HEAD}container:\n  volumes: ['/a:{target}:ro']\n").container.volumes
    assert volume.target == target


def test_a_field_of_a_flag_that_sparkd_does_not_own_is_good(tmp_path: Path) -> None:
    args = recipe(tmp_path, f"{HEAD}args:\n  compilation_config.cudagraph_mode: FULL\n  config-format: x\n").args
    assert args == {"compilation-config.cudagraph_mode": "FULL", "config-format": "x"}


@pytest.mark.parametrize(
    ("child", "build"),
    [
        ("", "make base"),
        ("image: {ref: mine}\n", ""),
        ("image: {ref: mine, build: make mine}\n", "make mine"),
        ("image: {build: make mine}\n", "make mine"),
    ],
)
def test_how_an_image_is_built_is_inherited_with_the_image_alone(tmp_path: Path, child: str, build: str) -> None:
    base = HEAD.replace("image: {ref: i}\n", "image: {ref: i, build: make base}\n")
    (tmp_path / "base.yaml").write_text(base.replace("name: r", "name: base"))
    (tmp_path / "child.yaml").write_text(f"schema: 1\nname: child\nextends: base\n{child}")
    loaded = load_recipe("child", [tmp_path])
    assert loaded.recipe.image.build == build
    assert ("image.build" in loaded.origins) == bool(build)


ASSERTS = HEAD.replace("image: {ref: i}\n", "image:\n  ref: i\n  assert:\n")


def test_an_image_is_checked_by_a_command_or_a_count_of_lines(tmp_path: Path) -> None:
    found = recipe(tmp_path, f"{ASSERTS}  - test -e /x\n  - {{file: /a, pattern: 'x y'}}\n").image.asserts
    assert found == ("test -e /x", Lines(file="/a", pattern="x y", times=1))


@pytest.mark.parametrize(
    ("entry", "needle"),
    [
        ("7", "image.assert.[0] = 7: must be"),
        ("{file: a, pattern: x}", 'image.assert.[0].file = "a": it must be an absolute path'),
        ("{file: /a}", "image.assert.[0].pattern is missing"),
        ("{file: /a, pattern: x, times: -1}", "image.assert.[0].times = -1: must be"),
        ("{file: /a, pattern: x, time: 1}", "image.assert.[0].time: there is no such key"),
        ('{file: /a, pattern: ""}', "must be a pattern of grep's"),
    ],
)
def test_an_assertion_that_is_none_is_named(tmp_path: Path, entry: str, needle: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, f"{ASSERTS}  - {entry}\n")
    assert needle in caught.value.reason
    assert len(caught.value.reason.splitlines()) == 1


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, f"{HEAD}arg: 1\nargs: {{headless: true}}\nnodes: {{min: 0}}\n")
    assert len(caught.value.reason.splitlines()) == 3


def test_a_recipe_changes_its_base_entry_by_entry(tmp_path: Path) -> None:
    base = HEAD.replace("name: x", "name: base") + (
        "description: of the base\nargs: {max_model_len: 1, seed: 2, a: {b: 1, c: 2}}\n"
        "env: {A: '1', B: '2'}\ncontainer: {gpus: none, shm_bytes: 5}\nexpect: {t: 1}\ncaches: {vllm: /v}\n"
    )
    write(tmp_path, "base", base)
    path = write(
        tmp_path,
        "x",
        "schema: 1\nname: x\nextends: base\nargs:\n  max-model-len: 9\n  seed: null\n  a: {b: 3}\n"
        "env: {B: '3'}\ncontainer: {shm_bytes: null}\nimage: {ref: other}\n",
    )
    loaded = load_recipe("x", [tmp_path])
    assert loaded.recipe.args == {"max-model-len": 9, "seed": None, "a": {"b": 3}}
    assert loaded.recipe.env == {"A": "1", "B": "3"}
    assert (loaded.recipe.container.gpus, loaded.recipe.container.shm_bytes) == ("none", None)
    assert (loaded.recipe.image.ref, loaded.recipe.model.path) == ("other", "m")
    assert (loaded.recipe.description, dict(loaded.recipe.expect)) == ("", {})
    assert loaded.files == (path, tmp_path / "base.yaml")
    assert loaded.origins["args.max-model-len"] == f"{path}: line 5"
    assert loaded.origins["env.A"] == f"{tmp_path / 'base.yaml'}: line 7"


def test_a_fault_of_the_base_is_named_where_it_stands(tmp_path: Path) -> None:
    base = write(tmp_path, "base", HEAD.replace("name: x", "name: base") + "container:\n  gpus: some\n")
    with pytest.raises(ConfigError, match=f"{base}: line 6: "):
        recipe(tmp_path, "schema: 1\nname: x\nextends: base\n")


def test_a_circle_of_bases_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a", "schema: 1\nname: a\nextends: b\n")
    write(tmp_path, "b", "schema: 1\nname: b\nextends: a\n")
    with pytest.raises(ConfigError, match="a extends b extends a: a circle"):
        load_recipe("a", [tmp_path])
    with pytest.raises(ConfigError, match="there is no recipe x"):
        recipe(tmp_path, "schema: 1\nname: x\nextends: x\n")


def test_the_administrators_recipe_hides_the_shipped_one_and_may_extend_it(tmp_path: Path) -> None:
    write(tmp_path / "shipped", "x", HEAD + "args: {seed: 1}\n")
    folders = [tmp_path / "etc", tmp_path / "shipped"]
    assert load_recipe("x", folders).recipe.args == {"seed": 1}
    mine = write(tmp_path / "etc", "x", "schema: 1\nname: x\nextends: x\nargs: {dtype: auto}\n")
    assert load_recipe("x", folders).recipe.args == {"seed": 1, "dtype": "auto"}
    assert find_recipes(folders) == {"x": mine}


def test_lookup_begins_below_etc_of_the_root(tmp_path: Path) -> None:
    assert recipe_folders(tmp_path) == (tmp_path / "etc/sparkd/recipes", recipes_dir())


def test_an_unknown_recipe_gives_the_nearest_name_and_the_folders(tmp_path: Path) -> None:
    write(tmp_path, "tiny-cpu", HEAD)
    with pytest.raises(ConfigError) as caught:
        load_recipe("tiny-gpu", [tmp_path, tmp_path / "absent"])
    assert "did you mean tiny-cpu?" in caught.value.reason
    assert f"{tmp_path} and {tmp_path / 'absent'}" in caught.value.reason


def test_a_path_names_a_recipe_of_any_file_name(tmp_path: Path) -> None:
    path = write(tmp_path, "some file", HEAD)
    assert load_recipe(str(path), []).recipe.name == "x"
    with pytest.raises(ConfigError, match="does not exist"):
        load_recipe(str(tmp_path / "none.yaml"), [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"modle": {"path": "m"}},
        {"model": {"path": "m", "served": "x"}},
        {"schema": 2},
        {"nodes": {"max": "two"}},
        {"nodes": {"min": 0}},
        {"executor": "slurm"},
        {"container": {"shm_bytes": "64g"}},
        {"container": {"ulimits": {"memlok": {"soft": -1, "hard": -1}}}},
        {"container": {"gpus": "some"}},
        {"args": ["--port"]},
        {"env": {"A": ["b"]}},
        {"memory_bytes": "3 GiB"},
        {"image": {"ref": "i", "assert": [{"file": "/a"}]}},
    ],
    ids=str,
)
def test_what_sparkd_refuses_for_its_shape_an_editor_marks(wrong: dict[str, object], tmp_path: Path) -> None:
    document = {"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i"}, **wrong}
    with pytest.raises(ConfigError):
        recipe(tmp_path, json.dumps(document))
    assert complaints(document) != []


def test_the_json_schema_is_one_of_its_draft_and_knows_every_key() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["additionalProperties"] is False
    assert PUBLISHED["required"] == ["schema", "name"]
    assert set(PUBLISHED["properties"]) == {
        *("schema", "name", "description", "source", "extends", "model", "image", "nodes", "executor", "args", "flags"),
        *("env", "secrets", "container", "host", "caches", "memory_bytes", "expect"),
    }
    assert "assert" in PUBLISHED["$defs"]["Image"]["properties"]


@pytest.mark.parametrize("depth", [60, 1_000_000])
def test_what_is_nested_too_deep_is_a_fault(depth: int) -> None:
    with pytest.raises(YamlError, match="line 2: is nested too deep"):
        parse_yaml(f"a: 1\nargs: {'[' * depth}{']' * depth}\n", lambda _: False)


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.sampled_from("ab: -[]{}&*!|>'\"%@`\n\t#,?0.<=~\0\x85\ufeff\ud7ff1e_x/"), max_size=60)
    | st.text(max_size=30)
)
def test_any_text_is_data_or_a_fault(text: str) -> None:
    try:
        parse_yaml(text, keeps_text=lambda _: True)
    except YamlError as error:
        assert str(error).startswith("line ")


def test_tens_of_thousands_of_mounts_are_read_in_seconds() -> None:
    """A follower reads its head's document in the main thread. Each was compared with all others: 17 s."""
    volumes = [f"/a{number}:/b{number}:ro" for number in range(30_000)]
    values = {"schema": 1, "name": "x", "model": {"path": "/m"}, "image": {"ref": "i:1"}}
    began = time.monotonic()
    made = schema.Recipe.model_validate({**values, "container": {"volumes": volumes}})
    assert len(made.container.volumes) == 30_000
    assert time.monotonic() - began < 6


def test_yaml_is_parsed_once_until_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "schema: 1\nname: mine\nmodel: {path: M}\nimage: {ref: i:1}\nargs: {max-num-seqs: 4}\n"
    file.write_text(text)
    before = parse_document.cache_info().misses
    assert load_recipe("mine", [tmp_path]) == load_recipe("mine", [tmp_path])
    assert parse_document.cache_info().misses == before + 1
    file.write_text(text.replace("4", "8"))
    assert load_recipe("mine", [tmp_path]).recipe.args == {"max-num-seqs": 8}
