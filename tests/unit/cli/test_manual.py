"""sparkd(8) has every command, action, argument and option of the command line, and no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.cli import main

MANUAL = (Path(__file__).parents[3] / "docs/sparkd.8.md").read_text()
COMMANDS = MANUAL.partition("# COMMANDS\n")[2].partition("\n# ")[0]
HEADS = [head.replace("\\", "") for head in re.findall(r"^(`.+)\n: ", COMMANDS, re.MULTILINE)]


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str], int]]:
    """Each command with its actions: the options that it takes, and the number of its arguments."""
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if inner:
        for name, sub in inner[0].choices.items():
            yield from leaves(sub, (*words, name))
        return
    options = [one.option_strings[-1] for one in parser._actions if one.option_strings]
    yield words, sorted(set(options) - {"--help"}), sum(not one.option_strings for one in parser._actions)


def command_line() -> Iterator[tuple[tuple[str, ...], list[str], int]]:
    for command, _, _ in main.COMMANDS:
        (commands,) = (one for one in main._parser(command)._actions if isinstance(one, argparse._SubParsersAction))
        yield from leaves(commands.choices[command], (command,))


def described(words: tuple[str, ...]) -> str:
    """What follows these words in the one entry that begins with them."""
    starts = [rf"`{words[0]}`", *(rf"(?:`[a-z]+`\|)*`{word}`(?:\|`[a-z]+`)*" for word in words[1:])]
    (found,) = (match for head in HEADS if (match := re.fullmatch(" ".join(starts) + "((?: .*)?)", head)))
    return str(found[1])


@pytest.mark.parametrize(("words", "options", "arguments"), [*command_line()])
def test_the_manual_has_what_the_command_line_has(words: tuple[str, ...], options: list[str], arguments: int) -> None:
    text = described(words)
    assert sorted(set(re.findall(r"`(-[a-zA-Z-]+)`", text))) == options
    others = re.sub(r"`-[a-zA-Z-]+`(?: \*[^*]+\*(?:\|\*[^*]+\*)*)?", "", text)
    assert len([one for one in others.split() if re.search(r"\*[^*]+\*|`[A-Z]+`", one)]) == arguments


def test_the_manual_has_no_other_command() -> None:
    assert {head.split("`")[1] for head in HEADS} == {command for command, _, _ in main.COMMANDS}
