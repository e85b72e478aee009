"""The published JSON Schema, as an editor applies it, against what sparkd itself takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from sparkd import share
from sparkd.errors import ConfigError
from sparkd.recipes import load, schema

FILES = sorted(share.recipes().glob("*.yaml"))
PUBLISHED = json.loads(schema.json_schema())
HEAD = {"schema": 1, "name": "x", "model": {"path": "m"}, "image": {"ref": "i"}}


def complaints(document: object) -> list[str]:
    return [error.message for error in Draft202012Validator(PUBLISHED).iter_errors(document)]


def test_it_is_a_schema_of_its_draft() -> None:
    Draft202012Validator.check_schema(PUBLISHED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_takes_every_shipped_recipe(path: Path) -> None:
    assert complaints(YAML(typ="safe").load(path.read_text())) == []


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
    document = {**HEAD, **wrong}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError):
        load.load(str(path), [])
    assert complaints(document) != []
