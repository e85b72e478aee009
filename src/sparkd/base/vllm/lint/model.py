"""Limits of a model, by its config.json, which is untrusted input.

Lengths, heads and quantization are derived as in vLLM (vllm/config/model.py, transformers_utils).
"""

from collections.abc import Mapping

from msgspec import Struct

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
"""The smallest of these counts, unless model_max_length is given."""
UNSCALED = ("default", "su", "longrope", "llama3", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of RoPE without a factor, or whose length already includes it."""
HIGHEST = 10**12
"""Largest number that makes sense."""
KV_HEADS, MOST_HEADS = "num_key_value_heads", 4096
OTHER_KV_HEADS = "key_value_heads"
"""End of the keys with another number of KV heads for some layers, such as swa_num_key_value_heads."""
OTHER_LAYERS = ("kv_lora_rank", "compress_ratios", "block_configs", "per_layer_config")
"""Keys of models whose layers keep no KV heads, or not all as many."""
QUANTIZATION_KEYS = ("quantization_config", "compression_config")


class ModelLimits(Struct, frozen=True):
    kind: str = ""
    """config.json's model_type."""
    max_length: int | None = None
    """Tokens; None if config.json gives no length."""
    heads: int = 0
    """Attention heads; 0 if unknown."""
    kv_heads: int = 0
    """KV heads of each layer; 0 if unknown, or if layers differ or keep none (MLA)."""
    quantization: str | None = None
    """How the checkpoint is quantized, by its quant_method; empty if it is not, None if unknown."""


def parse_limits(config: Mapping[str, object]) -> ModelLimits:
    """The limits in a model's config.json. Values that cannot be interpreted count as unknown."""
    if not config:
        return ModelLimits()
    kind = config.get("model_type")
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    layers_differ = any(key in OTHER_LAYERS or (key.endswith(OTHER_KV_HEADS) and key != KV_HEADS) for key in text)
    return ModelLimits(
        kind=kind if isinstance(kind, str) else "",
        max_length=_find_max_length(text, str(kind)),
        heads=_read_count(text.get("num_attention_heads")),
        kv_heads=0 if layers_differ else _read_count(text.get(KV_HEADS)),
        quantization=_read_quantization(config, text),
    )


def _read_quantization(*configs: Mapping[str, object]) -> str | None:
    """The method, read as vLLM reads it: empty without quantization, None if unknown, as in ModelOpt's own files."""
    section = next((config[key] for config in configs for key in QUANTIZATION_KEYS if config.get(key) is not None), {})
    if section == {}:
        return ""
    method = section.get("quant_method") if isinstance(section, Mapping) else None
    if not isinstance(method, str):
        return None
    return method.lower().replace("compressed_tensors", "compressed-tensors") or None


def _read_count(value: object) -> int:
    return value if type(value) is int and 0 < value <= MOST_HEADS else 0


def _find_max_length(config: Mapping[str, object], kind: str) -> int | None:
    """The longest length that any build of vLLM derives: 0.32 treats YaRN's factor as applied, older ones apply it."""
    stated = _read_number(config.get("model_max_length"))
    derived = stated or min((length for key in LENGTHS if (length := _read_number(config.get(key)))), default=None)
    if derived is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping) or "gemma3" in kind:  # whose length is scaled already
        return int(derived)
    # Newer configurations have one entry for each kind of layer.
    layers = [layer for layer in rope.values() if isinstance(layer, Mapping)] or [rope]
    scaled_lengths = [_scale(derived, layer) for layer in layers]
    return None if None in scaled_lengths else int(max(derived, *filter(None, scaled_lengths)))


def _scale(length: float, rope: Mapping[str, object]) -> float | None:
    """The length with RoPE's factor applied; None for an invalid configuration."""
    kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    if kind in UNSCALED or factor is None:
        return length
    original = _read_number(rope.get("original_max_position_embeddings")) if kind == "yarn" else length
    number = _read_number(factor)
    return original * number if original and number else None


def _read_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 < value <= HIGHEST else None
