"""The words of a `vllm serve`, taken apart: program, model, flags. Which flags sparkd keeps is not decided here."""

from __future__ import annotations

import re

from msgspec import Struct

from sparkd.lint.words import SHORT as JUDGED_SHORT
from sparkd.recipes.imports.shell import Command

SHORT = {
    **JUDGED_SHORT,
    "-q": "quantization",
    "-ac": "attention-config",
    "-ep": "enable-expert-parallel",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
}
_NUMBER = re.compile(r"-\.?[0-9]")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class CommandError(Exception):
    """The command is none that sparkd can run; says why."""


class Flag(Struct, frozen=True):
    name: str
    """In kebab case, without dashes; with `no-` where it was written so."""
    values: tuple[str, ...]


class Serve(Struct, frozen=True):
    env: dict[str, str]
    """Variables set in front of the program."""
    entrypoint: tuple[str, ...]
    model: str
    flags: tuple[Flag, ...]


def is_serve(command: Command) -> bool:
    return _end_of_program(command.words) > 0


def _end_of_program(words: list[str]) -> int:
    """How many words lead up to the model; 0 where it is no `vllm serve`."""
    for at in range(1, len(words)):
        if words[at] == "serve" and words[at - 1].rpartition("/")[2] == "vllm":
            return at + 1
    return 0


def serve(command: Command) -> Serve:
    """Raises CommandError."""
    end = _end_of_program(command.words)
    program, rest = command.words[:end], command.words[end:]
    env: dict[str, str] = {}
    if program[0] == "env" and _ASSIGNMENT.fullmatch(program[1]):
        program = program[1:]
    while found := _ASSIGNMENT.fullmatch(program[0]):
        env[found[1]] = found[2]
        program = program[1:]
    if program[0] == "exec":
        program = program[1:]
    model = ""
    if rest and not _is_flag(rest[0]):
        model, rest = rest[0], rest[1:]
    flags = _flags(rest)
    if not model:
        named = [flag.values[0] for flag in flags if flag.name == "model" and flag.values]
        if not named:
            raise CommandError("names no model right behind `serve`")
        model = named[-1]
    return Serve(env, tuple(program), model, tuple(flag for flag in flags if flag.name != "model"))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)


def _flags(words: list[str]) -> list[Flag]:
    found: list[tuple[str, list[str]]] = []
    closed = False
    for word in words:
        if _is_flag(word):
            name, equals, value = _name(word)
            found.append((name, [value] if equals else []))
            closed = bool(equals)
        elif not found or closed:
            raise CommandError(f"{word[:60]} belongs to no flag")
        else:
            found[-1][1].append(word)
    return [Flag(name, tuple(values)) for name, values in found]


def _name(word: str) -> tuple[str, str, str]:
    said, equals, value = word.partition("=")
    if said.startswith("--"):
        head, dot, fields = said[2:].partition(".")
        return head.replace("_", "-") + dot + fields, equals, value
    head, dot, fields = said.partition(".")
    if head not in SHORT:
        raise CommandError(f"the short flag {said[:60]} is not known: write its long form")
    return SHORT[head] + dot + fields, equals, value
