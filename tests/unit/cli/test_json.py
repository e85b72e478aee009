"""Every command that reads prints one JSON object with --json, also on failure."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.commands import needs_no_agent, needs_no_unit, sparkd

BROKEN = "schema: 1\nname: mine\nextends: tiny-cpu\nargs: {max-model-lenn: 512}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sparkd.toml"
    path.write_text('[engine]\nrecipe = "tiny-cpu"\n')
    return path


@pytest.mark.parametrize(
    ("command", "code", "keys"),
    [
        ("config show", 0, {"engine", "observe"}),
        ("config check", 0, {"lines"}),
        ("diff", 0, {"known_good", "differences"}),
        ("endpoint", 0, {"url", "clients"}),
        ("explain CUDA", 0, {"known"}),
        ("history", 0, {"launches"}),
        ("plan", 0, {"argv", "digest"}),
        ("recipe check tiny-cpu", 0, {"recipes"}),
        ("recipe diff tiny-cpu tiny-cpu-pair", 0, {"differences"}),
        ("recipe list", 0, {"recipes"}),
        ("recipe show tiny-cpu", 0, {"name", "args"}),
        ("rollback --list", 0, {"known_good"}),
        pytest.param("status", 21, set(), marks=needs_no_agent),
        ("tune show", 0, {"settings"}),
        pytest.param("units check", 78, {"error"}, marks=needs_no_unit),
        *([] if os.geteuid() else [("use --list", 0, {"recipes"})]),
        ("model check /nowhere", 10, {"error"}),
        ("recipe show none-such", 78, {"error"}),
        pytest.param("smoke", 2 if os.geteuid() else 10, {"error"}, marks=needs_no_agent),
    ],
)
def test_what_reads_prints_one_object_with_its_schema(config: Path, command: str, code: int, keys: set[str]) -> None:
    done = sparkd(*command.split(), "--json", config=config)
    shown = json.loads(done.stdout)
    assert done.returncode == code, done
    assert shown["schema"] == 1
    assert keys - shown.keys() == set()


def test_an_error_is_an_object_with_what_a_program_needs(config: Path) -> None:
    done = sparkd("plan", "--json", config=config, SPARKD_ENGINE__RECIPE="none-such")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == 78
    assert error["cause"] == "configuration"
    assert "no recipe" in error["reason"]
    assert error["hint"] in done.stderr, "and for a person as ever"


def test_an_error_of_the_logs_is_one_line_as_each_of_its_objects_is(config: Path) -> None:
    (line,) = sparkd("logs", "--json", "--since", "never", config=config).stdout.splitlines()
    assert json.loads(line)["error"]["hint"] == "such as 10m, 2d, 14:30 or 2026-11-23T14:30"


@pytest.mark.parametrize("command", ["rollback", "rollback --end", "use tiny-cpu", "use --end"])
def test_what_changes_something_prints_no_json(command: str, config: Path) -> None:
    done = sparkd(*command.split(), "--json", config=config)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 2, done
    assert error["reason"] == "--json is of --list alone"
    assert error["hint"] == f"sudo sparkd {command.split()[0]} --list --json"


def test_recipe_check_has_the_faults_of_each_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(BROKEN)
    done = sparkd("recipe", "check", "--json", "tiny-cpu", str(tmp_path / "mine.yaml"), str(tmp_path / "none.yaml"))
    good, wrong, missing = json.loads(done.stdout)["recipes"]
    assert done.returncode == 78
    assert good["errors"] == []
    assert len(wrong["errors"]) == 1
    assert len(missing["errors"]) == 1
    assert wrong["files"][0] == str(tmp_path / "mine.yaml")


def test_recipe_list_has_a_key_for_each_column() -> None:
    recipes = json.loads(sparkd("recipe", "list", "--json").stdout)["recipes"]
    (tiny,) = [recipe for recipe in recipes if recipe["name"] == "tiny-cpu"]
    assert tiny == {
        "name": "tiny-cpu",
        "nodes": "1",
        "context": "512",
        "tokens_s": "-",
        "model": "you build its image; tiny",
    }
