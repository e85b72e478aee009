"""How long a model's own texts may be, as vLLM derives it from config.json (vllm/config/model.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""The smallest of these counts; but model_max_length wins over all."""
UNSCALED = ("su", "longrope", "llama3", "default")
"""Kinds of RoPE whose factor is in the length already, or that have none."""
HIGHEST = 10**12


@dataclass(frozen=True)
class ModelLimits:
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
    own = _number(config.get("model_max_length"))
    derived = own or min((said for key in LENGTHS if (said := _number(config.get(key)))), default=None)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if derived is None or not isinstance(rope, Mapping) or "gemma3" in kind:
        return None if derived is None else int(derived)
    # Per kind of layer in newer configurations; all are scaled alike.
    layers = [one for one in rope.values() if isinstance(one, Mapping)] or [rope]
    for layer in layers:
        scaled = _scaled(derived, layer)
        if scaled is None:
            return None
        derived = scaled
        if layer.get("factor") is not None:
            break
    # vLLM lets a length pass that is not above model_max_length.
    return int(max(derived, own or 0))


def _scaled(length: float, rope: Mapping[str, object]) -> float | None:
    """None where the configuration makes no sense."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = _number(rope.get("factor"))
    if kind in UNSCALED or (factor is None and rope.get("factor") is None and kind != "yarn"):
        return length
    if factor is None:
        return None
    if kind == "yarn":
        original = _number(rope.get("original_max_position_embeddings"))
        return None if original is None else original * factor
    return length * factor


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= HIGHEST
    return value if good and isinstance(value, int | float) else None
