"""The words of a `vllm serve` one flag after another, with all that stands behind each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec import Struct

MODULES = ("vllm.entrypoints.openai.api_server",)
"""Modules of Python that hand all their words to vLLM's own parser, as `vllm serve` does."""

PASSED_ON = 'vllm serve "$@"'
"""How a script in the command itself ends that does the same."""


class Given(Struct, frozen=True):
    """`--name value value`, or `--name=value`. A value that is not known yet is None."""

    name: str
    values: tuple[str | None, ...] = ()
    joined: bool = False


def given(argv: Sequence[str], filled_later: Callable[[str], bool] = lambda _: False) -> tuple[Given, ...]:
    """The flags of a command, but for the model before them; none where it is another program's."""

    def known(value: str) -> str | None:
        return None if filled_later(value) else value

    found: list[Given] = []
    for word in argv[_start(argv) :]:
        if word.startswith("--") and len(word) > 2:
            said, equals, value = word[2:].partition("=")
            head, dot, field = said.partition(".")
            found.append(Given(head.replace("_", "-") + dot + field, (known(value),) if equals else (), bool(equals)))
        elif found:
            last = found.pop()
            found.append(Given(last.name, (*last.values, known(word)), last.joined))
    return tuple(found)


def _start(argv: Sequence[str]) -> int:
    for position, (program, word) in enumerate(pairwise(argv), 2):
        own = "vllm" in program.rpartition("/")[2] and word == "serve"
        if own or (program == "-m" and word in MODULES) or word.rstrip().endswith(PASSED_ON):
            return position
    return len(argv)
