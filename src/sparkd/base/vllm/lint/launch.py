"""What the rules of lint read of an engine that is to be launched."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct, field

from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.command import FirstValues, ParsedFlag
from sparkd.base.vllm.flag import SHIPPED, FlagTable, parse_amount, parse_json
from sparkd.base.vllm.lint.model import ModelLimits

Matches = Iterator[tuple[str, str]]
"""Matches of a rule: recipe key and reason."""

NOTHING = ("", "None")
"""Texts that mean no value for most flags; the table of flags has the exceptions."""


class Launch(Struct, frozen=True):
    """Flags and environment of the engine, with known facts about its container and model."""

    flags: FirstValues
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True
    gpus: int = 1
    """GPUs of each node, by the recipe."""
    nodes: int = 1
    """Fewest nodes that serve together."""
    addresses: tuple[str, ...] = ()
    """This node's own and the head's; none for a recipe on any node."""
    pool_tokens: int | None = None
    """Size of the KV cache, if the recipe gives it."""
    model: ModelLimits = ModelLimits()
    given: tuple[ParsedFlag, ...] = ()
    """All values of each flag, if vLLM's parser reads the command."""
    extra: tuple[str, ...] = ()
    """Flags of a fork, from the recipe's flags.extra."""
    vllm: FlagTable = SHIPPED
    """The vLLM by which is judged: its flags, their choices, and its variables."""
    texts: tuple[tuple[str, str], ...] = ()
    """Further texts of a recipe in which nothing is filled in, each after its key."""
    mounts: tuple[str, ...] = ()
    """Targets of the volumes and caches."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Numbers of bytes that a recipe sets, each after its key."""

    def amount(self, flag: str) -> int | None:
        """The flag's value as a count; None if missing, unknown or unreadable."""
        return parse_amount(self.flags.get(flag) or "")

    def share(self, flag: str) -> float | None:
        """The flag's value as a number; None if missing, unknown or unreadable."""
        with suppress(ValueError):
            return float((self.flags.get(flag) or "")[:40])
        return None

    def table(self, flag: str) -> dict[str, JsonValue]:
        """A JSON flag merged with its dotted fields; unreadable parts are left out."""
        whole = parse_json(self.flags.get(flag) or "")
        table = dict(whole) if isinstance(whole, dict) else {}
        for name, text in self.flags.items():
            if name.startswith(f"{flag}.") and text is not None:
                key, value = name.removeprefix(f"{flag}."), parse_json(text)
                if key.endswith("+"):  # adds to a list, with commas between its items
                    value = [*text.split(",")]
                table[key.removesuffix("+")] = text if value is None else value
        return table


def about(flag: str, reason: str) -> tuple[str, str]:
    """A match of a flag."""
    return f"args.{flag}", f"--{flag} {reason}"
