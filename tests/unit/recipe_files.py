"""Recipes as files, and the published JSON Schema applied to them."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from sparkd.base.recipes import schema
from sparkd.base.recipes.loader import load_recipe

PUBLISHED = json.loads(schema.json_schema())
MINIMAL_RECIPE = "schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n"


def complaints(document: object) -> list[str]:
    """Messages of an editor that applies the published JSON Schema."""
    return [error.message for error in Draft202012Validator(PUBLISHED).iter_errors(document)]


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def load_text(folder: Path, text: str) -> schema.Recipe:
    write(folder, "x", text)
    return load_recipe("x", [folder]).recipe
