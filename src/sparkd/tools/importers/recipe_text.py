"""The text of an imported recipe: YAML, whose comments name what was left out, what is missing, and what to run."""

import json
from collections.abc import Iterable
from pathlib import Path

from sparkd.base.lib.text import printable
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.yaml import format_flow
from sparkd.tools.importers.source import Note


def render(recipe: Recipe, files: list[str], notes: list[Note], steps: Iterable[str]) -> str:
    """The recipe as YAML, with comments. `files`: the imported ones. `steps`: the commands to an endpoint."""
    names = ", ".join(dict.fromkeys(_join_lines(Path(file).name) for file in files))
    # `recipe.source` of an import is "FORMAT recipe of MODEL".
    lines = [f"# Imported from {names} ({recipe.source.partition(' recipe of ')[0]})."]
    missing = [note for note in notes if note.is_missing]
    for heading, notes_below in (
        ("What is left out, or needs you:", [note for note in notes if not note.is_missing]),
        ("This does not lead to an endpoint yet. What is missing first:", missing),
    ):
        lines += ["#", f"# {heading}"] if notes_below else []
        lines += [_format_note(note, with_file=len(files) > 1) for note in notes_below]
    lines += [
        "#",
        "# After that:" if missing else "# To an endpoint:",
        *(f"#   {number}. {printable(step)}" for number, step in enumerate(steps, 1)),
    ]
    lines += ["schema: 1"]
    for key in ("name", "description", "source", *(["executor"] if recipe.executor != "mp" else [])):
        if text := getattr(recipe, key):
            lines.append(f"{key}: {format_flow(text, plain_numbers=False)}")
    # Nodes and container have only keys that the source decides: these are written even where they are defaults.
    for section, entries in (
        ("model", recipe.model.model_dump(exclude_defaults=True)),
        ("image", recipe.image.model_dump(exclude_defaults=True, by_alias=True)),
        ("nodes", recipe.nodes.model_dump(exclude_unset=True)),
        ("args", recipe.args),
        ("env", recipe.env),
        ("secrets", recipe.secrets),
        ("container", recipe.container.model_dump(exclude_unset=True)),
        ("caches", recipe.caches),
        ("expect", recipe.expect),
    ):
        lines += ["", f"{section}:"] if entries else []
        for key, value in entries.items():
            lines.append(f"  {format_flow(key, plain_numbers=False)}: {_format_value(section, value)}")
    return "\n".join(lines) + "\n"


def _format_note(note: Note, *, with_file: bool) -> str:
    where = f"{_join_lines(note.file)}: " if with_file else ""
    return f"#   {where}line {note.line}: {_join_lines(note.text)}"


def _format_value(section: str, value: object) -> str:
    """A value as YAML. That of `image.build` has a line for each step, since people read them."""
    if section == "expect":
        return json.dumps(value)
    if section == "image" and isinstance(value, dict):
        steps = "".join(f"\n      - {format_flow(step)}" for step in value["steps"])
        return f"\n    from: {format_flow(value['from'])}\n    steps:{steps}"
    return format_flow(value, plain_numbers=section == "args" or not isinstance(value, str))


def _join_lines(text: str) -> str:
    """The text on one line, which a comment cannot leave."""
    return printable(" ".join(text.split()))
