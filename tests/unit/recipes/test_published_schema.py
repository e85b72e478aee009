"""The published JSON Schema, by which editors check a recipe."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tests.unit.recipe_files import PUBLISHED, complaints, load_text

from sparkd.base.lib.errors import ConfigError


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
        load_text(tmp_path, json.dumps(document))
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
