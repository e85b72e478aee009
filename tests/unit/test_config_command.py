"""What `sparkd config`, `plan` and `recipe` print."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.unit.commands import sparkd

from sparkd.generate import FILES
from sparkd.settings import Settings, load, text

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sparkd.toml"
    path.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNCCL_DEBUG = "INFO"\n')
    return path


@pytest.mark.parametrize("path", FILES)
def test_the_files_made_from_the_source_are_up_to_date(path: str) -> None:
    assert (REPOSITORY / path).read_text() == FILES[path](), "run: make generate"


def test_the_default_file_says_every_default(tmp_path: Path) -> None:
    said = text.default_file()
    assert tomllib.loads(said) == {section: {} for section in Settings.model_fields}
    lines = [
        line.removeprefix("#") if line.startswith("#") and " = " in line and line[1] != " " else line
        for line in said.splitlines()
    ]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    stated = tomllib.loads("\n".join(lines))
    assert stated == json.loads(Settings().model_dump_json())
    assert load(tmp_path / "all.toml", {}) == Settings()


def test_every_key_is_described() -> None:
    for section in Settings.model_fields:
        for key, info in type(getattr(Settings(), section)).model_fields.items():
            assert info.description, f"{section}.{key}"


def test_show_says_what_holds_and_what_set_it(config: Path) -> None:
    done = sparkd("config", "show", config=config, SPARKD_MEMORY__FLOOR_MIB="9")
    assert done.returncode == 0
    lines = {line.partition(" = ")[0]: line for line in done.stdout.splitlines()}
    assert lines["recipe"].endswith(f"# {config}")
    assert lines["NCCL_DEBUG"].startswith('NCCL_DEBUG = "INFO" ')
    assert lines["floor_mib"].split() == ["floor_mib", "=", "9", "#", "SPARKD_MEMORY__FLOOR_MIB"]
    assert lines["models_dir"].endswith("# default")
    shown = tomllib.loads(done.stdout)
    assert shown["engine"]["env"] == {"NCCL_DEBUG": "INFO"}
    assert set(shown) == set(Settings.model_fields)


def test_what_show_prints_is_a_configuration(config: Path, tmp_path: Path) -> None:
    args = '{"a": {"b c": ["\\u007f\\u0001", 1.5, true]}, "d": "\\ud83e\\udd99\\"\\\\", "e": null}'
    env = {"SPARKD_ENGINE__ARGS": args, "SPARKD_CLUSTER__NODES": "10.0.0.1"}
    printed = sparkd("config", "show", config=config, **env).stdout
    (tmp_path / "again.toml").write_text(printed)
    again, first = load(tmp_path / "again.toml", {}), load(config, env)
    assert again.engine.args == {name: value for name, value in first.engine.args.items() if value is not None}
    assert again.cluster == first.cluster


def test_show_as_json_has_value_and_origin(config: Path) -> None:
    shown = json.loads(sparkd("config", "show", "--json", config=config).stdout)
    assert shown["engine"]["recipe"] == {"value": "tiny-cpu", "origin": str(config)}
    assert shown["engine"]["env"] == {"value": {"NCCL_DEBUG": "INFO"}, "origin": {"NCCL_DEBUG": str(config)}}


def test_show_default_needs_no_configuration() -> None:
    """As a person runs it: a process of its own."""
    command = [sys.executable, "-m", "sparkd.cli", "config", "show", "--default"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src"), "SPARKD_CONFIG": "/dev/null/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (text.default_file(), "")


def test_check_says_good_or_all_that_is_wrong(config: Path) -> None:
    good = sparkd("config", "check", config=config)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"settings are good ({config})" in good.stdout
    bad = sparkd("config", "check", config=config, SPARKD_FABRIC__MTU="1", SPARKD_X="1")
    assert bad.returncode == 78
    assert len(bad.stderr.splitlines()) == 2
    assert sparkd("config", "check", config=config, SPARKD_ENGINE__RECIPE="tiny-gpu").returncode == 78
    assert sparkd("config").returncode == 2


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


def test_check_names_a_faulty_recipe_once(config: Path) -> None:
    bad = sparkd("config", "check", config=config, SPARKD_ENGINE__RECIPE="tiny-gpu")
    assert bad.stderr.count("there is no recipe tiny-gpu") == 1


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
