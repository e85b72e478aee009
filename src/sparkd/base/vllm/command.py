"""The flags on an engine's command line, each with its values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from sparkd.base.vllm.args import kebab_case
from sparkd.base.vllm.flag import SHORT

API_SERVER = "vllm.entrypoints.openai.api_server"
"""The module that serves like `vllm serve`, started by `python3 -m`, but takes its model by --model alone."""
FirstValues = Mapping[str, str | None]
"""The first value of each flag by its kebab-case name; None for a missing or unknown value."""


class ParsedFlag(Struct, frozen=True):
    """`--name value value`, or `--name=value` (joined). A value that is not known yet is None."""

    name: str
    values: tuple[str | None, ...] = ()
    joined: bool = False


def parse_command(argv: Sequence[str], filled_later: Callable[[str], bool] = lambda _: False) -> tuple[ParsedFlag, ...]:
    """The flags of a command after its model, each with all values; empty for another program."""
    return tuple(_read_flags(argv[_find_model(argv) :], filled_later))


def first_values(words: Iterable[str]) -> dict[str, str | None]:
    """Flags by name; the last of several wins."""
    return {flag.name: flag.values[0] if flag.values else None for flag in _read_flags(words)}


def _read_flags(words: Iterable[str], filled_later: Callable[[str], bool] = lambda _: False) -> list[ParsedFlag]:
    """Flags with the words after each, also in their short forms."""
    flags: list[tuple[str, list[str | None], bool]] = []
    for word in words:
        head, equals, value = word.partition("=")
        name = SHORT.get(head) or (kebab_case(head[2:]) if word.startswith("--") and len(head) > 2 else "")
        if name:
            flags.append((name, [None if filled_later(value) else value] if equals else [], bool(equals)))
        elif flags:
            flags[-1][1].append(None if filled_later(word) else word)
    return [ParsedFlag(name, tuple(values), joined) for name, values, joined in flags]


def _find_model(argv: Sequence[str]) -> int:
    """Index of the word behind the program, where the model stands; the number of words for another program."""
    for position, (program, word) in enumerate(pairwise(argv), 2):
        is_serve = "vllm" in program.rpartition("/")[2] and word == "serve"
        # A Python module, and an inline script that ends so, pass all their words to vLLM's parser, too.
        is_module = program == "-m" and word == API_SERVER
        if is_serve or is_module or word.rstrip().endswith('vllm serve "$@"'):
            return position
    return len(argv)
