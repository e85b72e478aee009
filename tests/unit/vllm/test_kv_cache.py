"""The arithmetic of the KV cache beside what engines have logged: "Available KV cache memory", "GPU KV cache size".

Engines before 0.21 logged blocks instead of requests: there their "Maximum concurrency" counts, times its length.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from tests.unit.verdicts import present

from sparkd.base.lib.text import GIB
from sparkd.base.vllm.kv_cache import HIGHEST, MOST_LAYERS, read_kv_cache

CLOSE = 0.01
"""The logs round GiB to two places, and name one rank of several."""
QWEN3_30B = {"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "num_attention_heads": 32}
MINIMAX = {"num_hidden_layers": 62, "num_key_value_heads": 8, "head_dim": 128, "num_attention_heads": 48}
DEEPSEEK_V2_LITE = {"num_hidden_layers": 27, "num_key_value_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GPT_OSS_120B = {
    "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip
GEMMA_3_27B = {
    "text_config": {"num_hidden_layers": 62, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
                    "sliding_window_pattern": 6}
}  # fmt: skip
GEMMA_4_31B = {
    "text_config": {
        "num_hidden_layers": 60, "num_key_value_heads": 16, "head_dim": 256, "sliding_window": 1024,
        "global_head_dim": 512, "num_global_key_value_heads": 4,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
    }
}  # fmt: skip
NEMOTRON_3_NANO = {
    "num_hidden_layers": 52, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
LINEAR = {
    "full_attention_interval": 4, "head_dim": 256, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
QWEN3_8_27B = {
    "text_config": {**LINEAR, "num_hidden_layers": 64, "num_key_value_heads": 4, "linear_num_value_heads": 48,
                    "mamba_ssm_dtype": "float32"}
}  # fmt: skip
QWEN3_6_35B = {
    "text_config": {**LINEAR, "num_hidden_layers": 40, "num_key_value_heads": 2, "linear_num_value_heads": 32,
                    "mamba_ssm_dtype": "float32"}
}  # fmt: skip
QWEN3_NEXT = {**LINEAR, "num_hidden_layers": 48, "num_key_value_heads": 2, "linear_num_value_heads": 32}


class Log(NamedTuple):
    model: str
    config: Mapping[str, object]
    dtype: str
    ranks: int
    length: int
    available_gib: float
    tokens: float
    source: str
    stages: int = 1
    batched: int = 8192
    close: float = CLOSE


LOGS = (
    Log("Qwen3-8B", {"num_hidden_layers": 36, "hidden_size": 4096, "num_key_value_heads": 8, "num_attention_heads": 32},
        "auto", 1, 40960, 19.36, 140960, "a public start log of 0.19.1"),
    Log("Qwen2-7B", {"num_hidden_layers": 28, "hidden_size": 3584, "num_key_value_heads": 4, "num_attention_heads": 28},
        "auto", 2, 16384, 12.02, 450192, "dennislee22/vLLM-benchmarking, 2gpuA10080GB-0.25GRAM-same-node.log"),
    Log("Qwen3-30B-A3B", QWEN3_30B, "auto", 2, 32768, 25.91, 566016, "a public start log of 0.10.2, with EP"),
    Log("Qwen3-30B-A3B, FP8 cache", QWEN3_30B, "fp8", 1, 100000, 10.55, 230528, "vllm-project/vllm issue 25350"),
    Log("MiniMax-M2.7", MINIMAX, "auto", 2, 196608, 28.74, 240816, "eugr/spark-vllm-docker issue 396: two Sparks"),
    Log("Llama-3.2-1B", {"num_hidden_layers": 16, "num_key_value_heads": 8, "head_dim": 64}, "auto", 1, 4096, 67.92,
        2225488, "measured on an H200 with 0.26"),
    Log("DeepSeek-V2-Lite", DEEPSEEK_V2_LITE, "auto", 2, 1024, 12.13, 807792, "vllm-project/vllm issue 20665", 2),
    Log("gpt-oss-120b", GPT_OSS_120B, "auto", 4, 16384, 45.32, 284.25 * 16384,
        "dennislee22/vLLM-benchmarking, vllm-120B-4gpu", 1, 1024),
    Log("gemma-3-27b", GEMMA_3_27B, "auto", 1, 4096, 109.86, 50.05 * 4096, "a public start log of 0.11.0rc2"),
    Log("gemma-4-31B", GEMMA_4_31B, "auto", 2, 163840, 10.12, 169314, "a public start log of May 2026", 1, 4096),
    Log("Nemotron-3-Nano", NEMOTRON_3_NANO, "auto", 1, 262144, 34.32, 5769184, "a public start log on one Spark",
        close=0.04),  # it ran without prefix caching, which takes a block more of each kind of state
    Log("Qwen3.8-27B", QWEN3_8_27B, "fp8", 2, 131072, 4.99, 302921, "mitchross/talos-argocd-proxmox pull request 1995"),
    Log("Qwen3.6-35B-A3B", QWEN3_6_35B, "fp8", 1, 131072, 5.98, 567978, "noonghunna/club-3090 issue 612"),
    Log("Qwen3-Next-80B", QWEN3_NEXT, "auto", 2, 262144, 44.59, 14.77 * 262144, "a public start log of 0.10.2"),
)  # fmt: skip


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.model)
def test_the_tokens_are_those_that_the_engine_has_logged(log: Log) -> None:
    cache = present(read_kv_cache(log.config, log.dtype, log.ranks, log.stages, log.batched * 2))
    assert cache.tokens(log.available_gib * GIB, log.length) == pytest.approx(log.tokens, rel=log.close)


@pytest.mark.parametrize(
    ("config", "ranks", "length", "needed_gib"),
    [
        (MINIMAX, 2, 196608, 23.25),  # eugr/spark-vllm-docker issue 396
        (DEEPSEEK_V2_LITE, 1, 32768, 0.95),  # vllm-project/vllm issue 15871
        ({"num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128}, 1, 40960, 10.0),  # Qwen3-32B
        ({"num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128}, 1, 262144, 28.0),  # Qwen3-VL-2B
        ({"num_hidden_layers": 32, "num_key_value_heads": 8, "head_dim": 128}, 1, 131072, 16.0),  # Llama-3.1-8B
    ],
)
def test_a_request_takes_what_refused_starts_have_named(
    config: Mapping[str, object], ranks: int, length: int, needed_gib: float
) -> None:
    cache = present(read_kv_cache(config, "auto", ranks, 1, 16384))
    assert cache.request_bytes(length) / GIB == pytest.approx(needed_gib, abs=0.005)


def test_sparse_attention_has_its_own_format_in_fp8_and_an_indexer() -> None:
    config = {**DEEPSEEK_V2_LITE, "num_hidden_layers": 1, "index_topk": 2048}
    for dtype, token_bytes in (("auto", 1152 + 132), ("fp8", 656 + 132)):
        cache = present(read_kv_cache(config, dtype, 2, 1, 0))
        assert cache.request_bytes(16) == 16 * token_bytes


@pytest.mark.parametrize(("ranks", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_a_rank_beyond_the_heads_holds_one_whole(ranks: int, heads: int) -> None:
    config = {"num_hidden_layers": 1, "num_key_value_heads": 4, "head_dim": 128}
    cache = present(read_kv_cache(config, "auto", ranks, 1, 0))
    assert cache.request_bytes(16) == 16 * 2 * 128 * 2 * heads


@pytest.mark.parametrize(("sliding", "group"), [(4, 2), (3, 2), (2, 2)])
def test_kinds_of_layers_share_groups_of_the_smaller_count(sliding: int, group: int) -> None:
    """vLLM makes them as large as the larger count where that is less than 1.5 times the smaller."""
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * sliding
    config = {"num_hidden_layers": len(kinds), "num_key_value_heads": 1, "head_dim": 128, "sliding_window": 16}
    cache = present(read_kv_cache({**config, "layer_types": kinds}, "auto", 1, 1, 0))
    assert cache.block_bytes == group * 16 * 2 * 128 * 2


def test_layers_that_draft_are_counted() -> None:
    plain, drafting = (read_kv_cache(QWEN3_6_35B, "fp8", 1, 1, 4096, drafts) for drafts in (0, 3))
    assert plain is not None
    assert drafting is not None
    assert drafting.request_bytes(131072) > plain.request_bytes(131072) * 1.1


@pytest.mark.parametrize(
    ("scheme", "bytes_"),
    [({}, 2), ({"kv_cache_scheme": {"num_bits": 8}}, 1), ({"kv_cache_quant_algo": "FP8"}, 1),
     ({"kv_cache_quant_algo": "other"}, 2), ({"kv_cache_scheme": None}, 2)],
)  # fmt: skip
def test_a_checkpoint_may_name_another_dtype(scheme: Mapping[str, object], bytes_: int) -> None:
    cache = present(read_kv_cache({**QWEN3_30B, "quantization_config": scheme}, "auto", 1, 1, 0))
    assert cache.request_bytes(16) == 48 * 2 * 4 * 128 * bytes_ * 16


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 4},
        {"num_hidden_layers": "4", "num_key_value_heads": 8, "head_dim": 64},
        {"num_hidden_layers": -4, "num_key_value_heads": 8, "head_dim": 64},
        {**QWEN3_30B, "head_dim": HIGHEST + 1, "hidden_size": 0},
        {**QWEN3_30B, "compress_ratios": [0, 4, 128]},
        {**QWEN3_30B, "layer_types": ["conv"] * 48},
        {**QWEN3_30B, "layer_types": 7},
        {**QWEN3_30B, "layer_types": ["sliding_attention", "full_attention"] * 24},
        {**QWEN3_30B, "mamba_num_heads": 8},
        {**NEMOTRON_3_NANO, "conv_kernel": None},
        {**NEMOTRON_3_NANO, "hybrid_override_pattern": "MMMM"},
    ],
)
def test_a_model_of_another_kind_is_unknown(config: Mapping[str, object]) -> None:
    assert read_kv_cache(config, "auto", 1, 1, 4096) is None


def test_an_unknown_dtype_is_unknown() -> None:
    assert read_kv_cache(QWEN3_30B, "turboquant_4bit", 1, 1, 4096) is None


def test_numbers_without_sense_cost_nothing() -> None:
    cache = present(read_kv_cache({**QWEN3_30B, "num_hidden_layers": HIGHEST}, "auto", 1, 1, 4096))
    assert cache.layers[0].count == MOST_LAYERS
