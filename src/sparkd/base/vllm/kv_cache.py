"""The KV cache of a rank, by config.json and flags: what a request takes of it, and the tokens that a size holds. Pure.

vLLM's own arithmetic (v1/core/kv_cache_planning.py and v1/kv_cache_interface.py of 0.33): layers of one kind share the
numbers of their blocks, in groups of equal size; a block has equal bytes in each, and a request takes some of each.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

BLOCK_TOKENS = 16
UNEVEN = 1.5
"""A group has as many layers as the kind with the fewest; as the kind with the most, where that has less than this
times as many."""
ELEMENT_BYTES = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "nvfp4": 0.5625
}  # fmt: skip
"""Bytes of an element by --kv-cache-dtype; NVFP4 with its scales."""
MODEL_BYTES = 2
"""bfloat16 and float16, which vLLM also makes of float32."""
SPARSE_BYTES = {2.0: 1152, 1.0: 656}
"""Bytes of a token in a layer of DeepSeek's sparse attention, by those of an element: FP8 has a format of its own."""
INDEX_BYTES = 132
"""Bytes of a token in the indexer of such a layer."""
ATTENTION, WINDOW, STATE, NO_CACHE, UNKNOWN = "attention", "window", "state", "", "unknown"
KINDS = {
    "full_attention": ATTENTION, "attention": ATTENTION, "sliding_attention": WINDOW, "linear_attention": STATE,
    "mamba": STATE, "moe": NO_CACHE, "mlp": NO_CACHE, "*": ATTENTION, "M": STATE, "E": NO_CACHE, "-": NO_CACHE,
}  # fmt: skip
"""Kinds of layers by their names in config.json; the letters are those of Nemotron models."""
OTHER_LAYOUTS = (
    "attention_chunk_size", "attn_layer_period", "attn_type_list", "block_configs", "compress_rates", "compress_ratios",
    "conv_L_cache", "hybrid_layer_ids", "hybrid_layer_pattern", "is_encoder_decoder", "linear_attn_config",
    "mamba_d_ssm", "swa_num_key_value_heads",
)  # fmt: skip
"""Keys of models whose cache is not computed here: chunked, compressed and others."""
MOST_LAYERS, HIGHEST = 10_000, 1 << 24
"""Limits of numbers that make sense in config.json, which is untrusted input."""


class Layers(Struct, frozen=True):
    """The layers of one kind, on one rank."""

    count: int
    page_bytes: float
    """Bytes of a token, or of the whole state of a request, in one layer."""
    window: int = 0
    """Tokens that are kept; 0: all."""
    is_state: bool = False


class KvCache(Struct, frozen=True):
    layers: tuple[Layers, ...]
    in_flight: int
    """Twice the tokens that a step may add: the next step is prepared while one runs."""
    drafts: int = 0

    @property
    def _page_bytes(self) -> float:
        """Bytes of a block in one layer: BLOCK_TOKENS tokens of the largest kind, as often as a whole state needs."""
        unit = BLOCK_TOKENS * max(layers.page_bytes for layers in self.layers if not layers.is_state)
        state = max((layers.page_bytes for layers in self.layers if layers.is_state), default=0)
        return unit * max(1, _cdiv(state, unit))

    @property
    def _group_layers(self) -> int:
        """Layers of a group."""
        counts = [layers.count for layers in self.layers]
        return max(counts) if max(counts) < UNEVEN * min(counts) else min(counts)

    @property
    def block_bytes(self) -> float:
        """Bytes of a block in all layers of a group."""
        return self._group_layers * self._page_bytes

    def request_blocks(self, length: int) -> int:
        """Blocks that a request of `length` tokens takes, with prefix caching."""
        return sum(_cdiv(kind.count, self._group_layers) * self._count_blocks(kind, length) for kind in self.layers)

    def _count_blocks(self, layers: Layers, length: int) -> int:
        """Blocks that a request takes in one group of such layers."""
        if layers.is_state:
            return 2 + self.drafts
        block_tokens = int(self._page_bytes // layers.page_bytes)
        if layers.window:
            return _cdiv(min(layers.window - 1 + self.in_flight, length), block_tokens) + 1
        return _cdiv(length, block_tokens)

    def request_bytes(self, length: int) -> int:
        return round(self.request_blocks(length) * self.block_bytes)

    def tokens(self, available_bytes: float, length: int) -> int:
        """Tokens as vLLM's log counts them since 0.21: requests of `length` tokens at once, times that length."""
        return int(available_bytes // self.block_bytes / self.request_blocks(length) * length)


def read_kv_cache(
    config: Mapping[str, object], dtype: str, ranks: int, stages: int, in_flight: int, drafts: int = 0
) -> KvCache | None:
    """The cache by a model's config.json. None for an unknown kind of model or dtype.

    `ranks` are those of tensor parallelism, `stages` those of pipeline parallelism. `drafts`: tokens that the model
    itself drafts.
    """
    nested = config.get("text_config")
    model = {**config, **nested} if isinstance(nested, Mapping) else config
    element = ELEMENT_BYTES.get(_read_dtype(model) if dtype == "auto" else dtype)
    counts = Counter(_list_kinds(model))
    if element is None or not counts[ATTENTION] or any(model.get(key) for key in OTHER_LAYOUTS):
        return None
    if drafts:
        counts[ATTENTION] += _read_number(model, "num_nextn_predict_layers", "mtp_num_hidden_layers") or 1
    try:
        layers = _list_layers(model, counts, element, ranks, drafts)
    except LookupError:
        return None
    return KvCache(tuple(replace(kind, count=_cdiv(kind.count, stages)) for kind in layers), in_flight, drafts)


def _list_layers(
    model: Mapping[str, object], counts: Counter[str], element: float, ranks: int, drafts: int
) -> list[Layers]:
    """Layers by kind. Raises LookupError where config.json does not say what a layer takes."""
    layers = [Layers(counts[ATTENTION], _attention_bytes(model, element, ranks, is_full=True))]
    if counts[WINDOW]:
        window = _need(model, "sliding_window")
        layers.append(Layers(counts[WINDOW], _attention_bytes(model, element, ranks, is_full=False), window))
    if counts[STATE]:
        layers.append(Layers(counts[STATE], _state_bytes(model, ranks, drafts), is_state=True))
    if not all(kind.page_bytes for kind in layers):
        raise LookupError
    return layers


def _list_kinds(model: Mapping[str, object]) -> list[str]:
    """The kind of each layer that has a cache; empty where one is unknown."""
    layers = range(1, 1 + min(_read_number(model, "num_hidden_layers"), MOST_LAYERS))
    layer_names = model.get("layer_types") or model.get("layers_block_type") or model.get("hybrid_override_pattern")
    if isinstance(layer_names, str | list):
        kinds = [KINDS.get(str(name), UNKNOWN) for name in layer_names[:MOST_LAYERS]]
    elif layer_names is not None:
        return []
    elif interval := _read_number(model, "full_attention_interval"):
        kinds = [STATE if layer % interval else ATTENTION for layer in layers]
    elif interval := _read_number(model, "sliding_window_pattern"):
        kinds = [WINDOW if layer % interval else ATTENTION for layer in layers]
    elif any(key in model for key in ("mamba_num_heads", "mamba_n_heads", "ssm_state_size", "linear_num_value_heads")):
        return []
    else:
        kinds = [ATTENTION for _ in layers]
    if UNKNOWN in kinds:
        return []
    return [kind for kind in kinds[: len(kinds) - _read_number(model, "num_kv_shared_layers")] if kind]


def _attention_bytes(model: Mapping[str, object], element: float, ranks: int, *, is_full: bool) -> float:
    """Bytes of a token in a layer. Raises LookupError where config.json does not say it.

    `is_full`: of full attention, for whose layers some models give other heads than for those with a window.
    """
    if latent := _read_number(model, "kv_lora_rank"):
        if model.get("index_topk"):
            return SPARSE_BYTES[element] + INDEX_BYTES
        return (latent + _need(model, "qk_rope_head_dim")) * element
    heads = _read_number(model, "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_groups")
    size = _read_number(model, "head_dim")
    if is_full and (global_size := _read_number(model, "global_head_dim")):
        size, heads = global_size, _read_number(model, "num_global_key_value_heads") or heads
    heads = heads or _need(model, "num_attention_heads")
    size = size or _need(model, "hidden_size") // _need(model, "num_attention_heads")
    return max(1, heads // ranks) * (size + (_read_number(model, "v_head_dim") or size)) * element


def _state_bytes(model: Mapping[str, object], ranks: int, drafts: int) -> float:
    """Bytes of a request in a layer of linear attention, or of Mamba 2. Raises LookupError."""
    if "linear_num_value_heads" in model:
        heads, size = _need(model, "linear_num_value_heads"), _need(model, "linear_value_head_dim")
        width, kernel = _need(model, "linear_key_head_dim"), _need(model, "linear_conv_kernel_dim")
        groups, dtype = _need(model, "linear_num_key_heads"), model.get("mamba_ssm_dtype")
    else:
        heads, size = _need(model, "mamba_num_heads", "mamba_n_heads"), _need(model, "mamba_head_dim", "mamba_d_head")
        width, kernel = _need(model, "ssm_state_size", "mamba_d_state"), _need(model, "conv_kernel", "mamba_d_conv")
        groups = _need(model, "n_groups", "mamba_n_groups")
        dtype = model.get("mamba_ssm_cache_dtype", "float32" if "conv_kernel" in model else "")
    columns, element = heads * size + 2 * groups * width, 4 if dtype == "float32" else MODEL_BYTES
    return columns // ranks * (kernel - 1 + drafts) * MODEL_BYTES + heads // ranks * size * width * element


def _read_dtype(model: Mapping[str, object]) -> str:
    """The data type of the cache that a checkpoint names; auto where it names none."""
    config = model.get("quantization_config")
    config = config if isinstance(config, Mapping) else {}
    nested = config.get("quantization")
    config = {**config, **nested} if isinstance(nested, Mapping) else config
    algorithm = str(config.get("kv_cache_quant_algo")).lower()
    scheme = config.get("kv_cache_scheme")
    bits = str(scheme.get("num_bits")) if isinstance(scheme, Mapping) else ""
    return {"8": "fp8", "4": "nvfp4"}.get(bits, algorithm if algorithm in ELEMENT_BYTES else "auto")


def _read_number(model: Mapping[str, object], *names: str) -> int:
    """The first of these numbers; 0 where there is none that makes sense."""
    numbers = map(model.get, names)
    return next((number for number in numbers if type(number) is int and 0 < number <= HIGHEST), 0)


def _need(model: Mapping[str, object], *names: str) -> int:
    """The first of these numbers. Raises LookupError where there is none."""
    if not (number := _read_number(model, *names)):
        raise LookupError(names[0])
    return number


def _cdiv(dividend: float, divisor: float) -> int:
    """The quotient, rounded up."""
    return int(-(-dividend // divisor))
