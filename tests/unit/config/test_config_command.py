"""What `sparkd config`, `plan` and `recipe` print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.tree import Tree
from tests.unit.commands import sparkd

from generate import FILES
from sparkd.base.config import Settings, load_settings, reference
from sparkd.base.config.reference import describe
from sparkd.base.host import Host
from sparkd.base.lib import recipes_dir
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import Node
from sparkd.base.plan.script import render_asserts
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.state.launch_history import FILE, AssertResult, LaunchHistory
from sparkd.tools.cli.plan import read_missing_kernels
from sparkd.tools.node.plan_text import describe_plan

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sparkd.toml"
    path.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNCCL_DEBUG = "INFO"\n')
    return path


@pytest.mark.parametrize("path", FILES)
def test_the_files_made_from_the_source_are_up_to_date(path: str) -> None:
    assert (REPOSITORY / path).read_text() == FILES[path](), "run: make generate"


def test_the_default_file_says_every_default(tmp_path: Path) -> None:
    text_lines = reference.default_file().splitlines()
    assert tomllib.loads("\n".join(text_lines)) == {section: {} for section in Settings.model_fields}
    lines = [re.sub(r"^#(?=\S.* = )", "", line) for line in text_lines]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert tomllib.loads("\n".join(lines)) == json.loads(Settings().model_dump_json())
    assert load_settings({"SPARKD_CONFIG": str(tmp_path / "all.toml")}) == Settings()


def test_every_key_is_described() -> None:
    for name, section in Settings():
        descriptions = [describe(section, key) for key in type(section).model_fields]
        assert all(descriptions), name
        assert len({*descriptions}) == len(descriptions), f"{name}: a key has the description of the next one"


def test_show_says_what_holds_and_what_set_it(config: Path) -> None:
    done = sparkd("config", "show", config=config, SPARKD_MEMORY__FLOOR_MIB="9")
    assert done.returncode == 0
    lines = {line.partition(" = ")[0]: line for line in done.stdout.splitlines()}
    assert lines["recipe"].endswith(f"# {config}")
    assert lines["NCCL_DEBUG"].startswith('NCCL_DEBUG = "INFO" ')
    assert lines["floor_mib"].split() == ["floor_mib", "=", "9", "#", "SPARKD_MEMORY__FLOOR_MIB"]
    assert lines["models_dir"].endswith("# default")
    printed = tomllib.loads(done.stdout)
    assert printed["engine"]["env"] == {"NCCL_DEBUG": "INFO"}
    assert set(printed) == set(Settings.model_fields)
    document = json.loads(sparkd("config", "show", "--json", config=config).stdout)
    assert document["engine"]["recipe"] == {"value": "tiny-cpu", "origin": str(config)}
    assert document["engine"]["env"] == {"value": {"NCCL_DEBUG": "INFO"}, "origin": {"NCCL_DEBUG": str(config)}}


def test_what_show_prints_is_a_configuration(config: Path, tmp_path: Path) -> None:
    args = '{"a": {"b c": ["\\u007f\\u0001", 1.5, true]}, "d": "\\ud83e\\udd99\\"\\\\", "e": null}'
    env = {"SPARKD_ENGINE__ARGS": args, "SPARKD_CLUSTER__NODES": "10.0.0.1"}
    printed = sparkd("config", "show", config=config, **env).stdout
    (tmp_path / "again.toml").write_text(printed)
    again, first = (
        load_settings({"SPARKD_CONFIG": str(tmp_path / "again.toml")}),
        load_settings({**env, "SPARKD_CONFIG": str(config)}),
    )
    assert again.engine.args == {name: value for name, value in first.engine.args.items() if value is not None}
    assert again.cluster == first.cluster


def test_show_default_needs_no_configuration() -> None:
    """As a person runs it: a process of its own."""
    command = [sys.executable, "-m", "sparkd.tools.cli.main", "config", "show", "--default"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src"), "SPARKD_CONFIG": "/dev/null/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (reference.default_file(), "")


def test_check_says_good_or_all_that_is_wrong(config: Path) -> None:
    good = sparkd("config", "check", config=config)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"settings are good ({config})" in good.stdout
    bad = sparkd("config", "check", config=config, SPARKD_FABRIC__MTU="1", SPARKD_X="1")
    assert bad.returncode == 78
    assert len(bad.stderr.splitlines()) == 3
    bad = sparkd("config", "check", config=config, SPARKD_ENGINE__RECIPE="tiny-gpu")
    assert (bad.returncode, bad.stderr.count("there is no recipe tiny-gpu")) == (78, 1)
    assert sparkd("config").returncode == 2


def test_check_names_a_power_command_that_would_not_be_run(config: Path, tmp_path: Path) -> None:
    plug = tmp_path / "plug"
    bad = sparkd("config", "check", config=config, SPARKD_SUPERVISE__POWER_COMMAND=f"{plug},cycle")
    assert (bad.returncode, bad.stdout) == (78, "")
    assert f"supervise.power_command would not be run: {plug} can't be read: No such file" in bad.stderr
    bad = sparkd("config", "check", config=config, SPARKD_SUPERVISE__POWER_COMMAND="plug,cycle")
    assert (bad.returncode, "its first word must be an absolute path" in bad.stderr) == (78, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root")
@pytest.mark.parametrize(
    ("setting", "content", "mode", "reason"),
    [
        ("OBSERVE__TOKEN_FILE", None, 0o600, "does not exist"),
        ("OBSERVE__TOKEN_FILE", "x" * 32, 0o644, "has mode 0644, needed is 0600\nhint: sudo chmod 600 "),
        ("OBSERVE__TOKEN_FILE", "abc", 0o600, "has no token, which is one line of 16 to 512"),
        ("NOTIFY__WEBHOOK_FILE", "example.com/hook", 0o600, "is no URL of https://"),
        ("NOTIFY__COMMAND", "#!/bin/sh", 0o600, "notify.command would not be run: "),
        ("ENGINE__SECRETS__VLLM_API_KEY", None, 0o600, "secret VLLM_API_KEY can't be read from "),
        ("ENGINE__SCRIPT", None, 0o600, "engine.script "),
    ],
)
def test_check_reads_each_file_that_is_named(
    config: Path, tmp_path: Path, setting: str, content: str | None, mode: int, reason: str
) -> None:
    named = tmp_path / "named"
    if content is not None:
        named.write_text(content)
        named.chmod(mode)
    bad = sparkd("config", "check", config=config, **{f"SPARKD_{setting}": str(named)})
    assert (bad.returncode, reason in bad.stderr) == (78, True), bad.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root")
def test_check_warns_of_a_key_that_others_can_read(config: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    for mode, warned in ((0o644, True), (0o600, False)):
        key.chmod(mode)
        good = sparkd("config", "check", config=config, SPARKD_ENGINE__SECRETS__VLLM_API_KEY=str(key))
        assert (good.returncode, f"hint: sudo chmod 600 {key}" in good.stdout) == (0, warned), good


@pytest.mark.skipif(os.geteuid() != 0, reason="is about another user")
def test_check_names_what_another_user_than_root_left_out() -> None:
    named = {"SPARKD_ENGINE__SCRIPT": "/root/own.sh", "SPARKD_ENGINE__SECRETS__VLLM_API_KEY": "/root/key"}
    with NamedTemporaryFile("w", suffix=".toml") as config:  # pytest's folders are for root alone
        print('[engine]\nrecipe = "tiny-cpu"', file=config, flush=True)
        Path(config.name).chmod(0o644)
        assert sparkd("config", "check", config=config.name, **named).returncode == 78, "neither is there"
        os.seteuid(65534)
        try:
            done = sparkd("config", "check", config=config.name, **named)
        finally:
            os.seteuid(0)
    assert done.returncode == 0, done
    assert "not looked at, since only root can read them: /root/key, /root/own.sh\nnext: sudo" in done.stdout


def test_check_judges_flags_as_recipe_check_does(config: Path) -> None:
    bad = sparkd("config", "check", config=config, SPARKD_ENGINE__RECIPE=str(_misspelt(config.parent)))
    assert (bad.returncode, "--max-model-len is" in bad.stderr) == (78, True), bad
    env = {"SPARKD_ENGINE__RECIPE": str(config.parent / "mine.yaml"), "SPARKD_PREFLIGHT__SKIP": "plan-lint"}
    passed = sparkd("config", "check", config=config, **env)
    assert (passed.returncode, "warning: " in passed.stdout) == (0, True), passed


def _misspelt(folder: Path) -> Path:
    path = folder / "mine.yaml"
    path.write_text("schema: 1\nname: mine\nextends: tiny-cpu\nargs: {max-model-lenn: 512}\n")
    return path


def test_check_refuses_what_no_start_would_take(config: Path) -> None:
    env = {
        "SPARKD_PREFLIGHT__SKIP": "page-cash,memory",
        "SPARKD_PREFLIGHT__DOWNGRADE": "shared-memry",
        "SPARKD_ENGINE__ARGS__PORT": "29511",
    }
    bad = sparkd("config", "check", config=config, **env)
    assert (bad.returncode, bad.stdout) == (78, "")
    for needle in ("page-cash, which", "did you mean page-cache?", "names memory", "shared-memry", "observe.listen"):
        assert needle in bad.stderr
    assert bad.stderr.count("checks: ") == 1
    two = sparkd("config", "check", config=config, SPARKD_ENGINE__RECIPE="deepseek-v4-flash-balanced")
    assert two.returncode == 78
    assert "needs 2 node(s)" in two.stderr
    nodes = {"SPARKD_CLUSTER__NODES": "203.0.113.1,203.0.113.2", "SPARKD_ENGINE__RECIPE": "tiny-gpu"}
    assert all(
        needle in sparkd("config", "check", config=config, **nodes).stderr for needle in ("203.0.113.2)", "tiny-gpu")
    )


@pytest.mark.parametrize("unbuilt", ["0.6.12", ""])
def test_plan_says_what_the_checked_image_lacks_of_flashinfer(tree: Tree, unbuilt: str) -> None:
    recipe = load_recipe("deepseek-v4-flash-balanced", [recipes_dir()]).recipe
    plan = make_plan(recipe, Settings(), Node(0, "10.0.0.1", "10.0.0.1", 2, "fab0"))
    tree.dockerd()
    tree.docker("/version", {"Arch": "arm64"})
    image = {"Id": "sha256:1", "Architecture": "arm64", "Os": "linux", "Config": {}}
    tree.docker(f"/images/{plan.image_to_run}/json", image)
    result = AssertResult("", 1.0, "", unbuilt)
    history = LaunchHistory().record_asserts("sha256:1", render_asserts(plan.asserts), result)
    tree.file(FILE.path, FILE.encode(history))
    found = read_missing_kernels(CheckInputs(plan, Settings()), Host(tree.root))
    assert found == unbuilt
    command = "pip install flashinfer-jit-cache==0.6.12 --index-url"
    shown = describe_plan(plan, (), None, None, found)
    assert (command in shown) == ("usual folders" in shown) == ("print(torch.version.cuda)" in shown) == bool(unbuilt)
    assert "the image has no" not in shown, "it may have it elsewhere"


def test_plan_prints_the_script_and_no_secret(config: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_do_not_print")
    env = {"SPARKD_ENGINE__SECRETS__HF_TOKEN": str(tmp_path / "token")}
    for words in (["plan"], ["plan", "--json"], ["plan", "--script"]):
        done = sparkd(*words, config=config, **env)
        assert done.returncode == 0, done.stderr
        assert "hf_do_not_print" not in done.stdout
        assert "exec -- vllm serve /models/tiny" in done.stdout
    made = json.loads(sparkd("plan", "--json", config=config, **env).stdout)
    assert made["env"]["NCCL_DEBUG"] == "INFO"
    assert made["secrets"] == [{"name": "HF_TOKEN", "file": str(tmp_path / "token")}]
    assert len(made["digest"]) == 64


def test_plan_shows_the_whole_container_and_an_endpoint_for_the_head_alone(config: Path) -> None:
    cluster = {
        "SPARKD_CLUSTER__NODES": "10.0.0.1,10.0.0.2",
        "SPARKD_ENGINE__RECIPE": "dspark-nvfp4-1m",
        "SPARKD_FABRIC__INTERFACE": "fab0",
        "SPARKD_FABRIC__HCAS": "mlx5_0",
    }
    head, worker = (sparkd("plan", "--rank", rank, config=config, **cluster) for rank in "01")
    assert (head.returncode, worker.returncode) == (0, 0), head.stderr
    for shown in (head.stdout, worker.stdout):
        assert "\nulimit     memlock unlimited to unlimited\n" in shown
        assert "\ndevice     /dev/infiniband\n" in shown
    assert "\nendpoint   " in head.stdout
    assert "\nendpoint   " not in worker.stdout


def test_plan_of_another_rank_has_the_same_digest(config: Path) -> None:
    env = {
        "SPARKD_ENGINE__RECIPE": "deepseek-v4-flash-balanced",
        "SPARKD_CLUSTER__NODES": "10.0.0.1,10.0.0.2",
        "SPARKD_FABRIC__INTERFACE": "bond0",
        "SPARKD_FABRIC__HCAS": "rocep1s0f0",
    }
    plans = [json.loads(sparkd("plan", "--json", "--rank", rank, config=config, **env).stdout) for rank in ("0", "1")]
    assert [plan["role"] for plan in plans] == ["head", "worker"]
    assert plans[0]["digest"] == plans[1]["digest"]
    assert sparkd("plan", "--rank", "2", config=config, **env).returncode == 2


def test_recipe_lists_shows_checks_and_publishes_its_schema(config: Path, tmp_path: Path) -> None:
    listed = sparkd("recipe", "list", config=config).stdout
    assert {"deepseek-v4-flash-balanced", "tiny-cpu"} <= {line.split()[0] for line in listed.splitlines()}
    shown = sparkd("recipe", "show", "tiny-cpu", config=config).stdout
    assert 'args.dtype: "float32"' in shown
    assert "config/recipes/tiny-cpu.yaml: line " in shown
    assert json.loads(sparkd("recipe", "show", "--json", "tiny-cpu", config=config).stdout)["schema"] == 1
    assert json.loads(sparkd("recipe", "schema", config=config).stdout)["title"] == "sparkd recipe"
    (tmp_path / "x.yaml").write_text("schema: 1\nname: x\nagrs: {}\n")
    bad = sparkd("recipe", "check", str(tmp_path / "x.yaml"), "tiny-cpu", config=config)
    assert bad.returncode == 78
    assert "tiny-cpu is good" in bad.stdout
    assert "line 3: agrs: there is no such key; did you mean args?" in bad.stderr


def test_a_secret_where_none_belongs_is_led_to_its_place(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[engine]\nHF_TOKEN = "x"\n')
    done = sparkd("config", "check", config=tmp_path / "x.toml")
    assert "engine.HF_TOKEN: there is no such key; the file of a secret is named under secrets" in done.stderr


@pytest.mark.parametrize("words", [("config", "show", "--json"), ("plan", "--json")])
def test_json_has_no_character_that_a_terminal_obeys(config: Path, words: tuple[str, ...]) -> None:
    config.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNAME = "\\u009b2J\\u202e"\n')
    printed = sparkd(*words, config=config).stdout
    assert printed.isascii()
    assert "\\u009b2J\\u202e" in printed
