"""sparkd(8) has every command, action, argument and option of the command line, and no other."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkd.base.recipes.schema import json_schema
from sparkd.tools.cli import main

DOCS = Path(__file__).parents[3] / "docs"
MANUAL = (DOCS / "sparkd.8.md").read_text()
COMMANDS = MANUAL.partition("# COMMANDS\n")[2].partition("\n# ")[0]
HEADS = [head.replace("\\", "") for head in re.findall(r"^(`.+)\n: ", COMMANDS, re.MULTILINE)]


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command with its actions, and the options that it takes."""
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if inner:
        for name, sub in inner[0].choices.items():
            yield from leaves(sub, (*words, name))
        return
    options = [one.option_strings[-1] for one in parser._actions if one.option_strings]
    yield words, sorted(set(options) - {"--help"})


def command_line() -> Iterator[tuple[tuple[str, ...], list[str]]]:
    for command, _, _ in main.COMMANDS:
        (commands,) = (
            one for one in main.build_parser(command)._actions if isinstance(one, argparse._SubParsersAction)
        )
        yield from leaves(commands.choices[command], (command,))


@pytest.mark.parametrize("words", [words for words, _ in command_line()])
def test_the_manual_describes_each_command_once(words: tuple[str, ...]) -> None:
    pattern = " ".join((rf"`{words[0]}`", *(rf"(?:`[a-z]+`\|)*`{word}`(?:\|`[a-z]+`)*" for word in words[1:])))
    assert len([head for head in HEADS if re.fullmatch(pattern, head)]) == 1


def test_the_manual_has_no_other_command() -> None:
    assert {head.split("`")[1] for head in HEADS} == {command for command, _, _ in main.COMMANDS}


def recipe_keys(form: dict[str, Any], forms: dict[str, Any], prefix: str) -> Iterator[str]:
    """Of the JSON Schema: dotted, down to what is no section of its own."""
    for name, entry in form["properties"].items():
        inner = forms.get(entry.get("$ref", "").rpartition("/")[2])
        yield from recipe_keys(inner, forms, f"{prefix}{name}.") if inner else (f"{prefix}{name}",)


def test_the_manual_of_recipes_has_every_key_that_a_recipe_may_have() -> None:
    schema = json.loads(json_schema())
    described = re.findall(r"^`([^`]+)`.*\n: \S", (DOCS / "sparkd-recipe.5.md").read_text(), re.MULTILINE)
    keys = list(recipe_keys(schema, schema["$defs"], ""))
    assert len(keys) > 30
    assert [key for key in keys if key not in described] == []
    for form in ("Volume", "Limit", "Lines"):
        assert set(schema["$defs"][form]["properties"]) <= set(described)


def test_every_option_has_a_help_text_which_is_its_description_in_the_manual() -> None:
    for words, options in command_line():
        section = MANUAL.partition(f"\n## sparkd {' '.join(words)}\n")[2].partition("\n#")[0]
        described = re.findall(r"^(`-.+)\n: \S", section, re.MULTILINE)
        assert sorted(re.findall(r"`(--?[a-zA-Z-]+)`", head)[-1] for head in described) == options
