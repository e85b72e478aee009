"""How long a model's own texts may be, as vLLM derives it from config.json (vllm/config/model.py)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""The smallest of these counts; but model_max_length wins over all."""
UNSCALED = ("default", "su", "longrope", "llama3", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE whose factor is in the length already, or that have none."""
HIGHEST = 10**12


class ModelLimits(Struct, frozen=True):
    """`kind` is config.json's model_type."""

    kind: str = ""
    max_length: int | None = None
    """In tokens; None where config.json does not tell."""


UNKNOWN_MODEL = ModelLimits()


def limits(config: Mapping[str, object]) -> ModelLimits:
    """What a model's config.json says. What it says in no way that is understood is not known."""
    kind = config.get("model_type")
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    return ModelLimits(kind if isinstance(kind, str) else "", _max_length(text, str(kind)))


def _max_length(config: Mapping[str, object], kind: str) -> int | None:
    """The longest that any build of vLLM derives: 0.32 takes YaRN's factor as applied, older ones apply it."""
    own = _number(config.get("model_max_length"))
    derived = own or min((said for key in LENGTHS if (said := _number(config.get(key)))), default=None)
    if derived is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping) or "gemma3" in kind:
        return int(derived)
    # Newer configurations have one for each kind of layer; all are scaled alike.
    layers = [one for one in rope.values() if isinstance(one, Mapping)] or [rope]
    scaled = [_scaled(derived, layer) for layer in layers]
    return None if None in scaled else int(max(derived, *(one for one in scaled if one)))


def _scaled(length: float, rope: Mapping[str, object]) -> float | None:
    """None where the configuration makes no sense."""
    kind, said = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    if kind in UNSCALED or said is None:
        return length
    original = _number(rope.get("original_max_position_embeddings")) if kind == "yarn" else length
    factor = _number(said)
    return original * factor if original and factor else None


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= HIGHEST
    return value if good and isinstance(value, int | float) else None
