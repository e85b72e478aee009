"""Each command has a page with its actions, options and examples; each command line that the documents print parses."""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkd.base.lib.errors import UsageError
from sparkd.base.recipes.schema import json_schema
from sparkd.tools.cli import main

CHECKOUT = Path(__file__).parents[3]
DOCS = CHECKOUT / "docs"
BLOCK = re.compile(r"^```(text)?.*\n((?s:.*?))^```|((?:^    .*\n)+)", re.MULTILINE)
"""Fenced or indented; in one that is marked as text stands prose."""


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command with its actions, and the options that it takes."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if inner:
        for name, sub in inner[0].choices.items():
            yield from leaves(sub, (*words, name))
        return
    options = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    yield words, sorted(set(options) - {"--help"})


def command_line() -> Iterator[tuple[tuple[str, ...], list[str]]]:
    for command, *_ in main.COMMANDS:
        actions = main.build_parser(command)._actions
        (commands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
        yield from leaves(commands.choices[command], (command,))


COMMAND_LINE = list(command_line())


def page(command: str) -> str:
    return (DOCS / f"commands/sparkd-{command}.8.md").read_text()


def section(text: str, title: str) -> str:
    return text.partition(f"\n# {title}\n")[2].partition("\n# ")[0]


def printed_commands(path: Path) -> Iterator[str]:
    """The lines of its blocks that begin with sparkd, each without its comment and what a shell does with it."""
    for text, *block in BLOCK.findall(path.read_text()):
        for line in re.sub(r"\\\n\s*", "", "" if text else "".join(block)).splitlines():
            command = re.match(r"\s*(?:.* \| )?(?:sudo )?(sparkd .*)", line.partition(" # ")[0])
            if command:
                yield re.split(r" [|>]|; ", command[1])[0].strip()


DOCUMENTS = sorted({CHECKOUT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("commands/*.md")})
PRINTED = [(path.name, line) for path in DOCUMENTS for line in printed_commands(path)]


@pytest.mark.parametrize(("name", "line"), PRINTED)
def test_each_command_line_in_a_document_parses(name: str, line: str) -> None:
    words = shlex.split(line)[1:]
    try:
        main.build_parser(words[0]).parse_args(words)
    except UsageError as error:
        pytest.fail(f"{name}: {line}: {error}")


def test_the_documents_print_many_command_lines() -> None:
    assert len(PRINTED) > 100
    assert {"README.md", "howto.md", "sparkd-init.8.md"} <= {name for name, _ in PRINTED}


@pytest.mark.parametrize("command", sorted({words[0] for words, _ in COMMAND_LINE}))
def test_each_command_is_described(command: str) -> None:
    assert len(section(page(command), "DESCRIPTION")) > 20


@pytest.mark.parametrize("words", [words for words, _ in COMMAND_LINE if words[1:]], ids=" ".join)
def test_each_action_is_described_once(words: tuple[str, ...]) -> None:
    described = section(page(words[0]), "DESCRIPTION")
    heads = ", ".join(re.findall(r"^## (.+)$", described, re.MULTILINE)).split(", ")
    assert heads.count(words[1]) == 1


BY_SYSTEMD = ("run", "reload")


@pytest.mark.parametrize("words", [words for words, _ in COMMAND_LINE if words[0] not in BY_SYSTEMD], ids=" ".join)
def test_each_command_has_an_example(words: tuple[str, ...]) -> None:
    examples = (shlex.split(line)[1:] for line in printed_commands(DOCS / f"commands/sparkd-{words[0]}.8.md"))
    assert words in [tuple(example[: len(words)]) for example in examples]


@pytest.mark.parametrize("command", BY_SYSTEMD)
def test_a_command_that_systemd_runs_has_systemctls_as_its_example(command: str) -> None:
    assert "systemctl" in section(page(command), "EXAMPLES")


def test_no_other_command_has_a_page() -> None:
    named = {path.name for path in (DOCS / "commands").iterdir()}
    assert named == {f"sparkd-{words[0]}.8.md" for words, _ in COMMAND_LINE}


def recipe_keys(form: dict[str, Any], forms: dict[str, Any], prefix: str) -> Iterator[str]:
    """Dotted keys of the JSON Schema, down to what is no section of its own."""
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
    for words, options in COMMAND_LINE:
        shown = section(page(words[0]), "OPTIONS")
        if len(words) > 1:
            shown = shown.partition(f"\n## sparkd {' '.join(words)}\n")[2].partition("\n#")[0]
        described = re.findall(r"^(`-.+)\n: \S", shown, re.MULTILINE)
        assert sorted(re.findall(r"`(--?[a-zA-Z-]+)`", head)[-1] for head in described) == options, words
