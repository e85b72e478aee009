"""Whether a model fits its rank's share of the memory."""

from collections.abc import Mapping

import pytest
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, configured, plan, shipped
from tests.unit.verdicts import present

from sparkd.base.host import Host
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import GIB
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.memory_sum import OTHER_SHARE, MemorySum, ModelFit, add_up, read_sum

QWEN3_32B = {"num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}
GB10_GIB, SHARE = 121.6, 0.9
SHARE_BYTES = round(GB10_GIB * SHARE * GIB)


def summed(
    weights_gib: float, config: Mapping[str, object] | None = None, args: Mapping[str, object] | None = None
) -> MemorySum:
    made = plan(ALONE, args=args or {})
    return add_up(made, QWEN3_32B if config is None else config, {"w": round(weights_gib * GIB)}, SHARE_BYTES)


@pytest.mark.parametrize(
    ("weights_gib", "fit", "says"),
    [
        (61.0, ModelFit.FITS, "fit the share of 109.4 GiB: about "),
        (84.0, ModelFit.TIGHT, "fit the share of 109.4 GiB: activations and CUDA graphs must take little"),
        (
            101.0,
            ModelFit.REQUEST_TOO_BIG,
            "a request of 40960 tokens, 10.0 GiB, are 1.6 GiB more than the share of 109.4 GiB",
        ),
        (
            138.8,
            ModelFit.WEIGHTS_TOO_BIG,
            "weights of 138.8 GiB on each node are 29.4 GiB more than the share of 109.4 GiB",
        ),
    ],
)
def test_weights_and_a_request_are_held_against_the_share(weights_gib: float, fit: ModelFit, says: str) -> None:
    memory = summed(weights_gib)
    assert memory.fit is fit
    assert says in memory.describe()


def test_a_shorter_request_fits() -> None:
    assert summed(101.0, args={"max-model-len": "8K"}).fit is ModelFit.TIGHT


def summed_in(image: str, vllm: str = "") -> MemorySum:
    return add_up(plan(ALONE, image={"ref": image, "vllm": vllm}), QWEN3_32B, {"w": GIB}, SHARE_BYTES)


@pytest.mark.parametrize(("tag", "sequences"), [("v0.32.1", 1024), ("v0.33.0", 256), ("nightly", 256)])
def test_before_0_33_vllm_took_more_requests_at_once(tag: str, sequences: int) -> None:
    assert summed_in(f"vllm/vllm-openai:{tag}").sequences == sequences


@pytest.mark.parametrize(("image", "vllm"), [("vllm/vllm-openai:v0.32.1", ""), ("localhost/x", "0.32")])
def test_what_the_plan_leaves_to_vllm_is_a_row_with_the_value_of_its_version(image: str, vllm: str) -> None:
    assert summed_in(image, vllm).rows()[-2:] == (
        ("max-num-batched-tokens, not set", "8192, by vLLM's default"),
        ("max-num-seqs, not set", "1024, by vLLM's default"),
    )


@pytest.mark.parametrize("image", [f"vllm/vllm-openai@sha256:{'2c' * 32}", "eugr/spark-vllm:latest", "localhost/x"])
def test_the_defaults_of_an_image_without_a_version_are_no_rows(image: str) -> None:
    assert summed_in(image).rows()[-1][0] == "KV cache"


def test_what_the_plan_sets_is_no_row() -> None:
    made = plan(
        ALONE, image={"ref": "vllm/vllm-openai:v0.32.1"}, args={"max-num-batched-tokens": 4096, "max-num-seqs": 8}
    )
    assert add_up(made, QWEN3_32B, {"w": GIB}, SHARE_BYTES).rows()[-1][0] == "KV cache"


def test_a_cache_of_fp8_takes_half() -> None:
    whole, half = summed(61.0), summed(61.0, args={"kv-cache-dtype": "fp8"})
    assert whole.request_bytes == 2 * (half.request_bytes or 0)


def test_what_is_not_computed_is_unknown_and_the_weights_are_judged() -> None:
    other = summed(61.0, {"model_type": "deepseek_v4", "compress_ratios": [4]})
    assert other.fit is ModelFit.UNKNOWN
    assert other.tokens is None
    assert other.describe().endswith("the KV cache of such a model is not computed")
    assert summed(138.8, {}).fit is ModelFit.WEIGHTS_TOO_BIG


@pytest.mark.parametrize(
    "args",
    [
        {"quantization": "fp8"},
        {"cpu-offload-gb": 40},
        {"load-format": "gguf"},
        {"kv-cache-memory-bytes": "20G"},
        {"hf-overrides": "{}"},
    ],
)
def test_flags_that_change_what_is_loaded_leave_it_unknown(args: Mapping[str, object]) -> None:
    memory = summed(138.8, args=args)
    assert memory.weights is None
    assert memory.fit is ModelFit.UNKNOWN
    assert memory.describe() == ""
    assert dict(memory.rows())["weights"] == "unknown"


def test_a_quantized_checkpoint_is_what_it_is() -> None:
    config = {**QWEN3_32B, "quantization_config": {"quant_method": "fp8"}}
    assert summed(138.8, config, {"quantization": "fp8"}).fit is ModelFit.WEIGHTS_TOO_BIG


@pytest.mark.parametrize(
    ("model", "total_gib", "share", "weights_gib", "available_gib"),
    [
        ("Llama-3.2-1B on an H200", 139.8, 0.5, 1.38, 67.92),
        ("Qwen2-7B on an A100", 79.25, 0.5, 14.25, 24.83),
        ("Qwen3-Next-80B on two H200", 139.8, 0.9, 74.28, 44.59),
        ("gpt-oss-120b on four A100", 79.25, 0.8, 17.22, 45.32),
        ("gpt-oss-20b on an H100", 79.18, 0.9, 13.47, 50.28),
        ("Mistral-Small-3.2-24B on an H100", 79.18, 0.95, 44.76, 28.2),
        ("Llama-3.1-8B on an H100", 79.18, 0.9, 14.99, 51.38),
        ("Qwen3-32B on two H100", 79.18, 0.9, 30.59, 34.49),
    ],
)
def test_the_room_for_the_cache_is_what_engines_have_measured_within_a_tenth(
    model: str, total_gib: float, share: float, weights_gib: float, available_gib: float
) -> None:
    """By public logs of vLLM 0.10 to 0.26; the cache that a size holds is in test_kv_cache."""
    memory = add_up(plan(), {}, {"w": round(weights_gib * GIB)}, round(total_gib * share * GIB))
    assert present(memory.left_bytes) / GIB == pytest.approx(available_gib, rel=0.1), model


@pytest.mark.parametrize(
    ("total_gib", "share", "weights_gib", "request_gib"),
    [
        (79.18, 0.9, 65.97, 0.0),  # gpt-oss-120b on one H100: vllm-project/vllm issue 23278
        (79.18, 0.9, 67.72, 4.88),  # Llama-3.3-70B in FP8 on one H100, 16,000 tokens
        (23.64, 0.9, 18.14, 1.0),  # Qwen2.5-32B AWQ on a card of 24 GB, 4,096 tokens
        (121.69, 0.85, 79.65, 13.46),  # GLM-5.3-Flash on two Sparks, 850,000 tokens
    ],
)
def test_it_never_says_that_fits_what_an_engine_has_refused(
    total_gib: float, share: float, weights_gib: float, request_gib: float
) -> None:
    """Requests in one layer of as many bytes as the engine has named."""
    length = 4096
    config = {
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        "head_dim": max(1, round(request_gib * GIB / length / 4)),
    }
    made = plan(ALONE, args={"max-model-len": length})
    memory = add_up(made, config, {"w": round(weights_gib * GIB)}, round(total_gib * share * GIB))
    assert memory.fit in (ModelFit.TIGHT, ModelFit.REQUEST_TOO_BIG)


def test_the_first_recipe_fits_two_sparks_and_not_one(tree: Tree) -> None:
    """149 GB in 46 shards ("DeepSeek V4 Flash on Dual DGX Spark: What Broke, and the Recipe That Works", Echo)."""
    settings, recipe = configured(), shipped("deepseek-v4-flash-balanced")
    for number in range(46):
        tree.safetensors(f"/srv/models/DeepSeek-V4-Flash/model-{number:05}.safetensors", round(149e9 / 46))
    tree.meminfo(MemTotal=GB10_GIB)
    host = Host(tree.root)
    pair = read_sum(make_plan(recipe, settings, HEAD), settings, host, total_bytes=round(GB10_GIB * GIB))
    assert pair.fit is ModelFit.UNKNOWN, "its KV cache is not computed"
    assert present(pair.weights).expected < pair.share_bytes * (1 - OTHER_SHARE)
    single = recipe.model_copy(
        update={"args": {**recipe.args, "tensor-parallel-size": 1}, "nodes": type(recipe.nodes)()}
    )
    alone = read_sum(make_plan(single, settings, ALONE), settings, host, total_bytes=round(GB10_GIB * GIB))
    assert alone.fit is ModelFit.WEIGHTS_TOO_BIG
    larger = read_sum(make_plan(single, settings, ALONE), settings, host, total_bytes=round(2 * GB10_GIB * GIB))
    assert not larger.is_too_big, "a machine of 284 GB"


def test_where_the_model_is_not_there_the_sources_figure_counts(tree: Tree) -> None:
    memory = read_sum(plan(), configured(), Host(tree.root), known_gb=149, total_bytes=round(GB10_GIB * GIB))
    assert memory.fit is ModelFit.WEIGHTS_TOO_BIG
    assert read_sum(plan(), configured(), Host(tree.root), known_gb="149", total_bytes=GIB).weights is None


def test_a_header_without_sense_is_no_size(tree: Tree) -> None:
    path = tree.safetensors("/srv/models/m/model.safetensors", 4096)
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])
    assert read_sum(plan(), configured(), Host(tree.root), total_bytes=GIB).weights is None


def test_tensors_of_32_bits_are_loaded_with_16(tree: Tree) -> None:
    path = tree.safetensors("/srv/models/m/model.safetensors", 8192)
    content = path.read_bytes().replace(b'"U8"', b'"F32"')
    path.write_bytes((len(content) - 8 - 8192).to_bytes(8, "little") + content[8:])
    assert present(read_sum(plan(), configured(), Host(tree.root), total_bytes=GIB).weights).expected == 4096


def test_where_the_engine_chooses_the_length_it_is_unknown() -> None:
    assert summed(101.0, args={"max-model-len": "auto"}).request_bytes is None


def test_weights_in_two_forms_count_once(tree: Tree) -> None:
    for name in ("model", "consolidated"):
        tree.safetensors(f"/srv/models/m/{name}.safetensors", 8192)
    assert present(read_sum(plan(), configured(), Host(tree.root), total_bytes=GIB).weights).expected == 8192


@pytest.mark.parametrize("drafts", [-3, "9" * 400, None, [1]])
def test_a_number_of_drafts_without_sense_is_none(drafts: object) -> None:
    memory = summed(61.0, args={"speculative-config": {"method": "mtp", "num_speculative_tokens": drafts}})
    assert memory.request_bytes == summed(61.0).request_bytes


def test_a_gpu_that_is_not_there_yet_leaves_it_unknown(tree: Tree) -> None:
    """Its driver may be late: the machine's own memory may be none of its."""
    tree.safetensors("/srv/models/m/model.safetensors", 8192)
    tree.meminfo(MemTotal=GB10_GIB, MemFree=9, MemAvailable=9)
    host = Host(tree.root)
    host.gpu = lambda: NO_GPU
    memory = read_sum(plan(), configured(), host)
    assert memory.fit is ModelFit.UNKNOWN
    assert memory.describe() == ""
    assert memory.tokens is None
    assert dict(memory.rows())["share of the memory"] == "unknown, since no GPU answers"
