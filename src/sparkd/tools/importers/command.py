"""Reads the words of a command: whether they start vLLM's server, with its model and flags, or Ray."""

import re

from msgspec import Struct

from sparkd.base.vllm.args import kebab_case
from sparkd.base.vllm.flag import SHORT
from sparkd.tools.importers.variables import CommandError

VLLM_SERVE = ("vllm", "serve")
BEFORE = ("exec", "sudo", "nohup", "env", "-E")
"""Words that may come before a program."""
_SERVER = re.compile(r"vllm\.entrypoints\.openai\.api_server|.*vllm/entrypoints/openai/api_server\.py")
_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9]")
_OPTIMIZATION = re.compile(r"-O=?([0-3])")


class Flag(Struct, frozen=True):
    name: str
    """The long name in kebab case, without leading dashes; a prefix `no-` is a part of it."""
    values: tuple[str, ...]


class Serve(Struct, frozen=True):
    entrypoint: tuple[str, ...]
    model: str
    flags: tuple[Flag, ...]


def find_server(words: list[str]) -> tuple[tuple[str, ...], int]:
    """The words that start vLLM's server, and how many words come before its model; none and 0 without a server."""
    for at, word in enumerate(words):
        if word == "serve" and at and "vllm" in words[at - 1].rpartition("/")[2]:
            return _drop_prefix(words[: at + 1]), at + 1
        if _SERVER.fullmatch(word) and (word.endswith(".py") or words[at - 1 : at] == ["-m"]):
            start = next((place for place, word in enumerate(words[:at]) if "python" in word), 0)
            # The same server, which as a module ignores a model without a flag.
            return _drop_prefix([*words[:start], *VLLM_SERVE]), at + 1
    return (), 0


def _drop_prefix(words: list[str]) -> tuple[str, ...]:
    """The words that start the server, without `env NAME=VALUE` and others before it. `words`: up to `serve`.

    All words stay where options come first, as in env -u NAME: their values would pass for the program.
    """
    if "exec" in words:  # as a launcher has it, such as eugr's
        words = words[len(words) - words[::-1].index("exec") :]
    start = next(place for place, word in enumerate(words) if word not in BEFORE and "=" not in word)
    return tuple(words if words[start].startswith("-") else words[start:])


def is_ray(words: list[str]) -> bool:
    return "ray" in words[:2] and "start" in words[:3]


def parse_serve(entrypoint: tuple[str, ...], words: list[str]) -> Serve:
    """Read model and flags. `words`: those behind the entrypoint. Raises CommandError."""
    model, rest = "", words
    if rest and not _is_flag(rest[0]):
        model, rest = rest[0], rest[1:]
    flags = _parse_flags(rest)
    if not model:
        models = [flag.values[0] for flag in flags if flag.name == "model" and any(flag.values)]
        if not models:
            has_file = any(flag.name == "config" for flag in flags)
            advice = ", but a file of flags, --config: write them out" if has_file else ": write it there"
            raise CommandError(f"names no model right behind `serve`{advice}")
        model = models[-1]
    return Serve(entrypoint, model, tuple(flag for flag in flags if flag.name != "model"))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NEGATIVE_NUMBER.match(word)


def _parse_flags(words: list[str]) -> list[Flag]:
    """The flags with their values: the words behind each, or the one in --NAME=VALUE. Raises CommandError."""
    flags: list[tuple[str, list[str]]] = []
    has_own_value = False
    for word in words:
        if _is_flag(word):
            name, equals, value = _split_flag(word)
            flags.append((name, [value] if equals else []))
            has_own_value = bool(equals)
        elif not flags or has_own_value:
            raise CommandError(f"{word[:60]} belongs to no flag: remove it, or put its value in quotes")
        else:
            flags[-1][1].append(word)
    return [Flag(name, tuple(values)) for name, values in flags]


def _split_flag(word: str) -> tuple[str, str, str]:
    """Long name, "=" and value of a flag; the last two are empty where the word has no value."""
    name, equals, value = word.partition("=")
    if name.startswith("--"):
        return kebab_case(name[2:]), equals, value
    if level := _OPTIMIZATION.fullmatch(word):
        return "optimization-level", "=", level[1]
    head, dot, fields = name.partition(".")
    if head not in SHORT:
        raise CommandError(f"the short flag {name[:60]} is not known: write its long form")
    return SHORT[head] + dot + fields, equals, value
