"""Parses the words of a `vllm serve` as vLLM does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from sparkd.vllm.args import kebab_case

MODULES = ("vllm.entrypoints.openai.api_server",)
"""Python modules that pass all their words to vLLM's parser, as `vllm serve` does."""
PASSED_ON = 'vllm serve "$@"'
"""End of an inline script that does the same."""
SHORT = {
    "-cc": "compilation-config",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-n": "nnodes",
    "-r": "node-rank",
}
"""Short forms (vLLM 0.32) of the flags that rules and checks read."""

FirstValues = Mapping[str, str | None]
"""The first value of each flag by its kebab-case name; None for a missing or unknown value."""


class ParsedFlag(Struct, frozen=True):
    """`--name value value`, or `--name=value` (joined). A value that is not known yet is None."""

    name: str
    values: tuple[str | None, ...] = ()
    joined: bool = False


def parse_flags(argv: Sequence[str], filled_later: Callable[[str], bool] = lambda _: False) -> tuple[ParsedFlag, ...]:
    """The flags of a command after its model, each with all values; empty for another program."""
    found: list[ParsedFlag] = []
    for word in argv[_find_model(argv) :]:
        name, equals, value = _split(word)
        if name:
            found.append(ParsedFlag(name, (None if filled_later(value) else value,) if equals else (), bool(equals)))
        elif found:
            last = found.pop()
            found.append(ParsedFlag(last.name, (*last.values, None if filled_later(word) else word), last.joined))
    return tuple(found)


def _find_model(argv: Sequence[str]) -> int:
    for position, (program, word) in enumerate(pairwise(argv), 2):
        own = "vllm" in program.rpartition("/")[2] and word == "serve"
        if own or (program == "-m" and word in MODULES) or word.rstrip().endswith(PASSED_ON):
            return position
    return len(argv)


def first_values(words: Iterable[str]) -> dict[str, str | None]:
    """Flags by name, including short forms; the last of several wins. A word after a flag is its value."""
    found: dict[str, str | None] = {}
    last = ""
    for word in words:
        head, equals, value = word.partition("=")
        name = SHORT.get(head) or _split(word)[0]
        if name:
            last = "" if equals else name
            found[name] = value if equals else None
        elif last:
            found[last] = word
            last = ""
    return found


def _split(word: str) -> tuple[str, str, str]:
    """Name, `=` and value of a long flag; three empty texts for any other word."""
    head, equals, value = word.partition("=")
    if not word.startswith("--") or len(head) < 3:
        return "", "", ""
    return kebab_case(head[2:]), equals, value
