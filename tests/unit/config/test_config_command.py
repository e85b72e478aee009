"""`sparkd config`: show says what holds and what set it, check names all that no start would take."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from tests.unit.commands import Done, sparkd

from sparkd.base.config import Settings, reference
from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.tools.cli import config as config_command

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sparkd.toml"
    path.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNCCL_DEBUG = "INFO"\n')
    return path


def show(config: Path, *words: str, **env: str) -> str:
    done = sparkd("config", "show", *words, config=config, **env)
    assert done.returncode == 0
    return done.stdout


def refused(config: Path | str, **env: str) -> Done:
    """The check of settings that are wrong: each key is written without SPARKD_."""
    done = sparkd("config", "check", config=config, **{f"SPARKD_{name}": value for name, value in env.items()})
    assert done.returncode == 78, done
    return done


def test_show_says_what_set_each_key(config: Path) -> None:
    shown = show(config, SPARKD_MEMORY__FLOOR_MIB="9")
    lines = {line.partition(" = ")[0]: line for line in shown.splitlines()}
    assert lines["recipe"].endswith(f"# {config}")
    assert lines["NCCL_DEBUG"].endswith(f"# {config}")
    assert lines["floor_mib"].split() == ["floor_mib", "=", "9", "#", "SPARKD_MEMORY__FLOOR_MIB"]
    assert lines["models_dir"].endswith("# default")


def test_show_prints_toml_of_every_section(config: Path) -> None:
    printed = tomllib.loads(show(config))
    assert printed.keys() == Settings.model_fields.keys()
    assert printed["engine"]["env"] == {"NCCL_DEBUG": "INFO"}


def test_show_as_json_has_value_and_origin(config: Path) -> None:
    engine = json.loads(show(config, "--json"))["engine"]
    assert engine["recipe"] == {"value": "tiny-cpu", "origin": str(config)}
    assert engine["env"] == {"value": {"NCCL_DEBUG": "INFO"}, "origin": {"NCCL_DEBUG": str(config)}}


def test_show_default_needs_no_configuration() -> None:
    """As a person runs it: a process of its own."""
    command = [sys.executable, "-m", "sparkd.tools.cli.main", "config", "show", "--default"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src"), "SPARKD_CONFIG": "/dev/null/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == reference.default_file()
    assert done.stderr == ""


def test_check_says_that_settings_are_good(config: Path) -> None:
    good = sparkd("config", "check", config=config)
    assert good.returncode == 0
    assert good.stderr == ""
    assert f"settings are good ({config})" in good.stdout


def test_check_finds_the_table_by_the_variables_that_the_engine_gets(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = list[object]()

    def find_table(*words: object) -> FlagTable:
        variables.append(words[-1])
        return SHIPPED

    monkeypatch.setattr(config_command, "find_recipe_table", find_table)
    assert sparkd("config", "check", config=config).returncode == 0
    assert variables == [{"NCCL_DEBUG": "INFO"}]


def test_check_says_all_that_is_wrong(config: Path) -> None:
    assert len(refused(config, FABRIC__MTU="1", X="1").stderr.splitlines()) == 3


def test_check_names_a_missing_recipe_once(config: Path) -> None:
    assert refused(config, ENGINE__RECIPE="tiny-gpu").stderr.count("there is no recipe tiny-gpu") == 1


def test_config_without_an_action_is_a_usage_error() -> None:
    assert sparkd("config").returncode == 2


def test_check_names_a_power_command_that_would_not_be_run(config: Path, tmp_path: Path) -> None:
    plug = tmp_path / "plug"
    error = refused(config, SUPERVISE__POWER_COMMAND=f"{plug},cycle").stderr
    assert f"supervise.power_command would not be run: {plug} can't be read: No such file" in error
    error = refused(config, SUPERVISE__POWER_COMMAND="plug,cycle").stderr
    assert "its first word must be an absolute path" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root")
@pytest.mark.parametrize(
    ("setting", "content", "mode", "reason"),
    [
        ("OBSERVE__TOKEN_FILE", "x" * 32, 0o644, "has mode 0644, needed is 0600\nhint: sudo chmod 600 "),
        ("OBSERVE__TOKEN_FILE", "abc", 0o600, "has no token, which is one line of 16 to 512"),
        ("NOTIFY__WEBHOOK_FILE", "example.com/hook", 0o600, "is no URL of https://"),
        ("NOTIFY__COMMAND", "#!/bin/sh", 0o600, "notify.command would not be run: "),
    ],
)
def test_check_reads_each_file_that_is_named(
    config: Path, tmp_path: Path, setting: str, content: str, mode: int, reason: str
) -> None:
    named = tmp_path / "named"
    named.write_text(content)
    named.chmod(mode)
    assert reason in refused(config, **{setting: str(named)}).stderr


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("OBSERVE__TOKEN_FILE", "does not exist"),
        ("ENGINE__SECRETS__VLLM_API_KEY", "secret VLLM_API_KEY can't be read from "),
        ("ENGINE__SCRIPT", "engine.script "),
    ],
)
def test_check_names_a_file_that_is_not_there(config: Path, tmp_path: Path, setting: str, reason: str) -> None:
    assert reason in refused(config, **{setting: str(tmp_path / "gone")}).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="files of root")
@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o600, False)])
def test_check_warns_of_a_key_that_others_can_read(config: Path, tmp_path: Path, mode: int, warned: bool) -> None:
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    key.chmod(mode)
    good = sparkd("config", "check", config=config, SPARKD_ENGINE__SECRETS__VLLM_API_KEY=str(key))
    assert good.returncode == 0
    assert (f"hint: sudo chmod 600 {key}" in good.stdout) is warned


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


@pytest.fixture
def misspelt(tmp_path: Path) -> str:
    """A recipe with a flag that no build of vLLM takes."""
    path = tmp_path / "mine.yaml"
    path.write_text("schema: 1\nname: mine\nextends: tiny-cpu\nargs: {max-model-lenn: 512}\n")
    return str(path)


def test_check_judges_flags_as_recipe_check_does(config: Path, misspelt: str) -> None:
    assert "--max-model-len is" in refused(config, ENGINE__RECIPE=misspelt).stderr


def test_check_only_warns_where_preflight_skips_the_rules(config: Path, misspelt: str) -> None:
    env = {"SPARKD_ENGINE__RECIPE": misspelt, "SPARKD_PREFLIGHT__SKIP": "plan-lint"}
    passed = sparkd("config", "check", config=config, **env)
    assert passed.returncode == 0
    assert "warning: " in passed.stdout


def test_check_names_checks_that_do_not_exist_with_the_nearest(config: Path) -> None:
    error = refused(config, PREFLIGHT__SKIP="page-cash,memory", PREFLIGHT__DOWNGRADE="shared-memry").stderr
    for needle in ("page-cash, which", "did you mean page-cache?", "names memory", "shared-memry"):
        assert needle in error
    assert error.count("checks: ") == 1


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"ENGINE__ARGS__PORT": "29511"}, "observe.listen"),
        ({"ENGINE__RECIPE": "deepseek-v4-flash-balanced"}, "needs 2 node(s)"),
        ({"CLUSTER__NODES": "203.0.113.1,203.0.113.2"}, "203.0.113.2)"),
    ],
)
def test_check_refuses_what_makes_no_plan_of_this_node(config: Path, env: dict[str, str], reason: str) -> None:
    assert reason in refused(config, **env).stderr


def test_a_secret_where_none_belongs_is_led_to_its_place(config: Path) -> None:
    config.write_text('[engine]\nHF_TOKEN = "x"\n')
    needed = "engine.HF_TOKEN: there is no such key; the file of a secret is named under secrets"
    assert needed in refused(config).stderr


@pytest.mark.parametrize("words", [("config", "show", "--json"), ("plan", "--json")])
def test_json_has_no_character_that_a_terminal_obeys(config: Path, words: tuple[str, ...]) -> None:
    config.write_text('[engine]\nrecipe = "tiny-cpu"\n[engine.env]\nNAME = "\\u009b2J\\u202e"\n')
    printed = sparkd(*words, config=config).stdout
    assert printed.isascii()
    assert "\\u009b2J\\u202e" in printed
