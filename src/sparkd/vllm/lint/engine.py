"""The input of the rules: one engine to be launched, and the limits of its model.

Lengths are derived from config.json as in vLLM (vllm/config/model.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, field

from sparkd.vllm.args import JsonValue
from sparkd.vllm.command_line import FirstValues, ParsedFlag
from sparkd.vllm.flag import parse_amount, parse_json

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""The smallest of these counts, unless model_max_length is given."""
UNSCALED = ("default", "su", "longrope", "llama3", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE without a factor, or whose length already includes it."""
HIGHEST = 10**12


class ModelLimits(Struct, frozen=True):
    """`kind` is config.json's model_type."""

    kind: str = ""
    max_length: int | None = None
    """In tokens; None if config.json gives none."""


class Launch(Struct, frozen=True):
    """Flags and environment of the engine, with known facts about its container and model."""

    flags: FirstValues
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True
    kept: tuple[str, ...] = ()
    """Writable folders of the container that persist until the next launch."""
    pool_tokens: int | None = None
    """Size of the KV cache, if the recipe gives it."""
    model: ModelLimits = ModelLimits()
    given: tuple[ParsedFlag, ...] = ()
    """All values of each flag, if vLLM's parser reads the command."""
    extra: tuple[str, ...] = ()
    """Flags of a fork, from the recipe's flags.extra."""

    def amount(self, flag: str) -> int | None:
        """None if missing or unknown."""
        return parse_amount(self.flags.get(flag) or "")

    def share(self, flag: str) -> float | None:
        with suppress(ValueError):
            return float((self.flags.get(flag) or "")[:40])
        return None

    def table(self, flag: str) -> dict[str, JsonValue]:
        """A JSON flag merged with its dotted fields; unreadable parts are left out."""
        found = parse_json(self.flags.get(flag) or "")
        table = dict(found) if isinstance(found, dict) else {}
        for name, text in self.flags.items():
            head, dot, key = name.partition(".")
            if head == flag and dot and text is not None:
                value = parse_json(text)
                table[key.removesuffix("+")] = text if value is None else value
        return table


def parse_limits(config: Mapping[str, object]) -> ModelLimits:
    """The limits in a model's config.json; None for values that cannot be interpreted."""
    kind = config.get("model_type")
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    return ModelLimits(kind if isinstance(kind, str) else "", _max_length(text, str(kind)))


def _max_length(config: Mapping[str, object], kind: str) -> int | None:
    """The longest length that any build of vLLM derives: 0.32 treats YaRN's factor as applied, older ones apply it."""
    own = _number(config.get("model_max_length"))
    derived = own or min((found for key in LENGTHS if (found := _number(config.get(key)))), default=None)
    if derived is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping) or "gemma3" in kind:
        return int(derived)
    # Newer configurations have one entry for each kind of layer.
    layers = [one for one in rope.values() if isinstance(one, Mapping)] or [rope]
    scaled = [_scaled(derived, layer) for layer in layers]
    return None if None in scaled else int(max(derived, *(one for one in scaled if one)))


def _scaled(length: float, rope: Mapping[str, object]) -> float | None:
    """None for an invalid configuration."""
    kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    if kind in UNSCALED or factor is None:
        return length
    original = _number(rope.get("original_max_position_embeddings")) if kind == "yarn" else length
    number = _number(factor)
    return original * number if original and number else None


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= HIGHEST
    return value if good and isinstance(value, int | float) else None
