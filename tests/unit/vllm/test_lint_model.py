"""Flags against the model's own config.json: its length, its heads, and how the checkpoint is quantized."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.lint_launches import LAUNCH, judge, with_flags

from sparkd.base.host import weights
from sparkd.base.host.files import Files
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits

Config = dict[str, object]
GQA: Config = {"num_attention_heads": 24, "num_key_value_heads": 8}


def find_model_issues(config: Config, **flags: str) -> list[rules.Issue]:
    named = {name.replace("_", "-"): text for name, text in flags.items()}
    issues = rules.find_issues(Launch({"gpu-memory-utilization": "0.9", **named}, model=parse_limits(config)))
    return [issue for issue in issues if issue.rule.startswith("model-")]


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 2048}, 2048),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"text_config": {"max_position_embeddings": 262144}, "max_position_embeddings": 5}, 262144),
        # DeepSeek-V3's own; V4-Flash has 65536 x 16.
        ({"max_position_embeddings": 163840,
          "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 163840),
        # 0.32 takes the length as scaled.
        ({"max_position_embeddings": 131072,
          "rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 4096}}, 131072),
        ({"max_position_embeddings": 32768,
          "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 131072, "model_type": "gemma3_text",
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}}},
         8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": "4"}}, None),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4}}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": "4096"}, None),
    ],
)  # fmt: skip
def test_the_length_is_the_longest_that_any_build_derives(config: dict[str, object], longest: int | None) -> None:
    assert parse_limits(config).max_length == longest


def test_a_length_beyond_the_models_own_blocks() -> None:
    launch = replace(LAUNCH, model=ModelLimits("llama", 131071))
    assert judge(launch) == ["model-length blocks"]
    assert rules.find_issues(launch)[0].reason == "--max-model-len 131072, and the model's config.json allows 131071"
    assert judge(replace(LAUNCH, model=ModelLimits("llama", 131072))) == []


def test_a_length_that_a_variable_allows_warns() -> None:
    allowed = replace(LAUNCH, model=ModelLimits("llama", 4096), env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert judge(allowed) == ["long-by-will warns"]


@pytest.mark.parametrize("flag", ["hf-overrides", "hf-overrides.max_position_embeddings"])
def test_a_length_that_a_flag_changes_is_not_judged(flag: str) -> None:
    assert judge(with_flags(replace(LAUNCH, model=ModelLimits("llama", 4096)), {flag: "{}"})) == []


@pytest.mark.parametrize(
    ("config", "ranks", "fitting"),
    [
        ({"num_attention_heads": 40}, "3", "40 attention heads: 1, 2, 4, 5, 8, 10 would fit"),
        ({"text_config": {"num_attention_heads": 40}}, "3", "40 attention heads: 1, 2, 4, 5, 8, 10 would fit"),
        (GQA, "5", "24 attention heads: 1, 2, 4, 8 would fit"),
    ],
)
def test_attention_heads_that_the_ranks_do_not_divide_block(config: Config, ranks: str, fitting: str) -> None:
    (issue,) = find_model_issues(config, tensor_parallel_size=ranks)
    assert issue.rule == "model-heads"
    assert issue.blocks
    assert issue.reason == f"--tensor-parallel-size {ranks}, and the model has {fitting}"


@pytest.mark.parametrize(
    ("config", "fitting"),
    [
        (GQA, "8 KV heads: 1, 2, 4, 8 would fit"),
        ({"num_attention_heads": 24, "num_key_value_heads": 2}, "2 KV heads: 1, 2, 4, 6, 8, 12 would fit"),
    ],
)
def test_kv_heads_that_the_ranks_neither_divide_nor_copy_warn(config: Config, fitting: str) -> None:
    (issue,) = find_model_issues(config, tensor_parallel_size="3")
    assert issue.rule == "model-kv-heads"
    assert not issue.blocks
    assert issue.reason == f"--tensor-parallel-size 3, and the model has {fitting}"


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({"num_attention_heads": 40}, "4"),
        (GQA, "2"),
        ({"num_attention_heads": 32, "num_key_value_heads": 2}, "8"),  # each KV head is on four ranks
    ],
)
def test_heads_that_the_ranks_divide_or_copy_are_good(config: Config, ranks: str) -> None:
    assert find_model_issues(config, tensor_parallel_size=ranks) == []


@pytest.mark.parametrize(
    "config",
    [
        # Layers that differ, or keep no KV heads.
        {**GQA, "kv_lora_rank": 512},
        {**GQA, "num_global_key_value_heads": 2},
        {"num_attention_heads": [24, 8], "num_key_value_heads": [8]},
        {"num_attention_heads": "40"},
        {"num_attention_heads": True},
        {"num_attention_heads": 1 << 70},
        {},
    ],
)
def test_heads_that_are_not_known_are_not_judged(config: Config) -> None:
    assert find_model_issues(config, tensor_parallel_size="3") == []


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ("fp8", "awq"),
        ("awq", "fp8"),
        ("awq", "gptq_marlin"),
        ("compressed-tensors", "modelopt"),
        ("compressed_tensors", "fp8"),
        ("GPTQ", "AWQ"),
    ],
)
def test_a_quantization_that_the_checkpoint_has_not_blocks(own: str, wanted: str, nested: bool) -> None:
    quantized: Config = {"quantization_config": {"quant_method": own}}
    (issue,) = find_model_issues({"text_config": quantized} if nested else quantized, quantization=wanted)
    assert issue.rule == "model-quantization"
    assert issue.blocks
    assert issue.reason.startswith(f"--quantization {wanted}, and the model's config.json says ")


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ("awq", "awq_marlin"),
        ("awq", "auto_awq"),
        ("gptq", "gptq_marlin"),
        ("gptq", "moe_wna16"),
        ("awq", "marlin"),
        ("fp8", "fp8"),
        ("fp8", "humming"),
        ("compressed_tensors", "compressed-tensors"),
        # vLLM takes the checkpoint's own, whatever the flag says.
        ("modelopt", "modelopt_fp4"),
        ("modelopt", "awq"),
        ("mxfp4", "fp8"),
        # What is not known here is not judged.
        ("bitsandbytes", "awq"),
        ("fp8", "someones_own"),
        ("", "awq"),
        (7, "awq"),
    ],
)
def test_a_quantization_that_vllm_takes_for_the_checkpoints_is_good(own: object, wanted: str) -> None:
    assert find_model_issues({"quantization_config": {"quant_method": own}}, quantization=wanted) == []


def test_deepseek_v4_takes_any_quantization() -> None:
    config: Config = {"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}}
    assert find_model_issues(config, quantization="awq") == []


def test_what_a_flag_overrides_is_not_judged() -> None:
    config: Config = {"num_attention_heads": 40, "quantization_config": {"quant_method": "fp8"}}
    assert find_model_issues(config, quantization="awq", tensor_parallel_size="3", hf_overrides="{}") == []


@pytest.mark.parametrize("wanted", ["awq", "gptq", "modelopt", "compressed-tensors"])
def test_a_checkpoint_without_quantization_can_not_be_loaded_with_it(wanted: str) -> None:
    (issue,) = find_model_issues({"model_type": "llama"}, quantization=wanted)
    assert issue.rule == "model-quantization"
    assert find_model_issues({}, quantization=wanted) == [], "no config.json was read"


@pytest.mark.parametrize("wanted", ["fp8", "quark"])
def test_some_quantize_at_the_load(wanted: str) -> None:
    assert find_model_issues({"model_type": "llama"}, quantization=wanted) == []


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_a_file_beside_config_json_says_that_a_checkpoint_is_quantized(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": null}')
    assert len(find_model_issues(read_config(tmp_path), quantization="modelopt_fp4")) == 1
    (tmp_path / name).write_text('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}')
    assert find_model_issues(read_config(tmp_path), quantization="modelopt_fp4") == []


@pytest.mark.parametrize("text", ["[]", "{", '"x"', "[" * 100_000, "{}", '{"a": ' + "9" * 5000 + "}", "x" * (5 << 20)])
def test_a_hostile_file_beside_config_json_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GQA))
    (tmp_path / "hf_quant_config.json").write_text(text)
    assert read_config(tmp_path) == GQA


def read_config(folder: Path) -> Config:
    return dict(weights.read_config(Files(), str(folder)))
