"""Words for completions: from the files that take effect, and none that a shell could run."""

from pathlib import Path

import pytest
from tests.unit.commands import sparkd

from sparkd.base.config import Settings, sources
from sparkd.tools.cli.complete import INIT_FILE, MODELS


def words(kind: str, config: Path) -> list[str]:
    done = sparkd("__complete", kind, config=config)
    assert done.returncode == 0
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "sparkd.toml").write_text(f'[cluster]\nnodes = ["10.0.0.1"]\n[engine]\nmodels_dir = "{tmp_path}/m"\n')
    return tmp_path / "sparkd.toml"


def test_the_last_file_of_conf_d_takes_effect(config: Path) -> None:
    (config.parent / "conf.d").mkdir()
    (config.parent / "conf.d/.editor.toml").write_text('[cluster]\nnodes = ["10.0.0.8"]\n')  # the agent ignores it
    assert words("nodes", config) == ["10.0.0.1"]
    for name, nodes in (("10-a.toml", '["10.0.0.9"]'), ("20-b.toml", '["fd00::1", "10.0.0.2"]')):
        (config.parent / "conf.d" / name).write_text(f"[cluster]\nnodes = {nodes}\n")
    (config.parent / "conf.d/30-broken.toml").write_text("[cluster")
    assert words("nodes", config) == ["10.0.0.2", "fd00::1"]


def test_what_init_wrote_takes_effect_where_no_other_file_has_the_key(config: Path) -> None:
    (config.parent / "conf.d").mkdir()
    (config.parent / INIT_FILE).write_text('[cluster]\nnodes = ["10.0.0.7"]\n')
    assert words("nodes", config) == ["10.0.0.1"]
    config.write_text("")
    assert words("nodes", config) == ["10.0.0.7"]


def test_the_file_that_is_read_first_is_the_one_that_init_writes() -> None:
    assert f"{sources.FOLDER}/{sources.INIT_FILE}" == INIT_FILE


def test_models_are_folders_with_a_configuration_by_their_name_below_the_models_folder(config: Path) -> None:
    for name in ("A", "org/B", "org/deep/C", "$(reboot)", "with blank", "-rf"):
        (config.parent / "m" / name).mkdir(parents=True)
        (config.parent / "m" / name / "config.json").touch()
    (config.parent / "m/empty").mkdir()
    assert words("models", config) == ["A", "org/B"]


def test_ranks_are_those_of_the_nodes(config: Path) -> None:
    assert words("ranks", config) == ["0"]
    config.write_text('[cluster]\nnodes = ["10.0.0.1", "10.0.0.2"]\n')
    assert words("ranks", config) == ["0", "1"]


def test_the_models_folder_is_that_of_the_settings_by_default() -> None:
    assert Settings().engine.models_dir == MODELS


@pytest.mark.parametrize(
    "text", ["cluster = 1", "[cluster]\nnodes = 5", "\xff", "[" * 5000, "[engine]\nmodels_dir = [1]"]
)
def test_a_strange_configuration_gives_no_words_and_hides_no_recipe(text: str, tmp_path: Path) -> None:
    (tmp_path / "sparkd.toml").write_text(text, encoding="latin-1")
    assert words("nodes", tmp_path / "sparkd.toml") == []
    assert words("models", tmp_path / "sparkd.toml") == []
    assert "tiny-cpu" in words("recipes", tmp_path / "sparkd.toml")
