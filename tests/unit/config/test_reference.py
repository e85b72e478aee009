"""What is made from the settings' own source: the default file, descriptions, and what `config show` prints."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from generate import FILES
from sparkd.base.config import Settings, load_settings, reference
from sparkd.base.config.reference import describe
from sparkd.base.config.sources import load_with_origins

REPOSITORY = Path(__file__).parents[3]


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


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_key_has_a_description_of_its_own(name: str) -> None:
    section = getattr(Settings(), name)
    descriptions = [describe(section, key) for key in type(section).model_fields]
    assert all(descriptions)
    assert len({*descriptions}) == len(descriptions), "a key has the description of the next one"


def test_what_show_prints_is_a_configuration(tmp_path: Path) -> None:
    args = '{"a": {"b c": ["\\u007f\\u0001", 1.5, true]}, "d": "\\ud83e\\udd99\\"\\\\", "e": null}'
    loaded = load_with_origins({"SPARKD_ENGINE__ARGS": args, "SPARKD_CLUSTER__NODES": "10.0.0.1"}, tmp_path)
    (tmp_path / "again.toml").write_text(reference.show(loaded))
    again, first = load_settings({"SPARKD_CONFIG": str(tmp_path / "again.toml")}), loaded.settings
    assert again.engine.args == {name: value for name, value in first.engine.args.items() if value is not None}
    assert again.cluster == first.cluster
