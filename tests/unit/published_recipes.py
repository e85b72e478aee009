"""Recipes of eugr's tool (V1) and of sparkrun (V2) in a published tree, and the recipe that their import gives."""

from pathlib import Path

from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import Place

V1 = "recipe_version: '1'\nname: x\ncontainer: vllm-node-own\n"
V2 = "recipe_version: '2'\nmodel: o/m\ncontainer: r/i:1\n"
SERVES = "command: vllm serve o/m\n"
TEMPLATE = (
    '#!/bin/bash\nset -e\ncp chat.jinja $WORKSPACE_DIR/fixed.jinja\necho "=====> use --chat-template fixed.jinja"\n'
)
"""A mod's script."""


def imported(tree: Path, text: str, mods: Path | None = None) -> tuple[Recipe, convert.Conversion]:
    """Import a recipe of the tree; the first of both is as it is read back."""
    path = tree / "recipes/given.yaml"
    path.write_text(text)
    result = convert.import_file(path, {}, (), Place(mods=mods))
    written = tree / "written.yaml"
    written.write_text(result.text)
    return load_recipe(str(written), []).recipe, result


def add_mod(folder: Path, script: str, **files: str) -> Path:
    """Write a mod. In the name of a file `_` stands for a dot."""
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(script)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder
