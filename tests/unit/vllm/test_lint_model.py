"""Flags against the model's own config.json: heads by parallelism, and how the checkpoint is quantized."""

import json
from pathlib import Path

import pytest

from sparkd.base.host import weights
from sparkd.base.host.files import Files
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import parse_limits

Config = dict[str, object]
GQA: Config = {"num_attention_heads": 24, "num_key_value_heads": 8}
TP = "tensor-parallel-size"


def find_model_issues(config: Config, **flags: str) -> list[tuple[str, bool, str]]:
    named = {name.replace("_", "-"): text for name, text in flags.items()}
    issues = rules.find_issues(Launch({"gpu-memory-utilization": "0.9", **named}, model=parse_limits(config)))
    return [(issue.rule, issue.blocks, issue.reason) for issue in issues if issue.rule.startswith("model-")]


@pytest.mark.parametrize(
    ("config", "ranks", "issue"),
    [
        ({"num_attention_heads": 40}, "3", ("model-heads", True, "40 attention heads: 1, 2, 4, 5, 8, 10 would fit")),
        ({"num_attention_heads": 40}, "4", None),
        ({"text_config": {"num_attention_heads": 40}}, "3", ("model-heads", True, "40 attention heads: 1, 2,")),
        (GQA, "3", ("model-kv-heads", False, "8 KV heads: 1, 2, 4, 8 would fit")),
        (GQA, "5", ("model-heads", True, "24 attention heads: 1, 2, 4, 8 would fit")),
        (GQA, "2", None),
        ({"num_attention_heads": 32, "num_key_value_heads": 2}, "8", None),  # each KV head is on four ranks
        ({"num_attention_heads": 24, "num_key_value_heads": 2}, "3", ("model-kv-heads", False, "1, 2, 4, 6, 8, 12")),
        # Layers that differ, or keep no KV heads.
        ({**GQA, "kv_lora_rank": 512}, "3", None),
        ({**GQA, "num_global_key_value_heads": 2}, "3", None),
        ({"num_attention_heads": [24, 8], "num_key_value_heads": [8]}, "5", None),
        ({"num_attention_heads": "40"}, "3", None),
        ({"num_attention_heads": True}, "3", None),
        ({"num_attention_heads": 1 << 70}, "3", None),
        ({}, "3", None),
    ],
)
def test_heads_are_divided_by_tensor_parallelism(
    config: Config, ranks: str, issue: tuple[str, bool, str] | None
) -> None:
    issues = find_model_issues(config, tensor_parallel_size=ranks)
    if issue is None:
        assert issues == []
        return
    ((rule, blocks, reason),) = issues
    assert (rule, blocks) == issue[:2]
    assert reason.startswith(f"--{TP} {ranks}, and the model has ")
    assert issue[2] in reason


@pytest.mark.parametrize(
    ("own", "wanted", "refused"),
    [
        ("fp8", "awq", True),
        ("awq", "fp8", True),
        ("awq", "gptq_marlin", True),
        ("compressed-tensors", "modelopt", True),
        ("compressed_tensors", "fp8", True),
        ("GPTQ", "AWQ", True),
        ("awq", "awq_marlin", False),
        ("awq", "auto_awq", False),
        ("gptq", "gptq_marlin", False),
        ("gptq", "moe_wna16", False),
        ("awq", "marlin", False),
        ("fp8", "fp8", False),
        ("fp8", "humming", False),
        ("compressed_tensors", "compressed-tensors", False),
        # vLLM takes the checkpoint's own, whatever the flag says.
        ("modelopt", "modelopt_fp4", False),
        ("modelopt", "awq", False),
        ("mxfp4", "fp8", False),
        # What is not known here is not judged.
        ("bitsandbytes", "awq", False),
        ("fp8", "someones_own", False),
        ("", "awq", False),
        (7, "awq", False),
    ],
)
def test_a_quantization_that_the_checkpoint_has_not_blocks(own: object, wanted: str, refused: bool) -> None:
    quantized: Config = {"quantization_config": {"quant_method": own}}
    nested: Config = {"text_config": quantized}
    for config in (quantized, nested):
        issues = find_model_issues(config, quantization=wanted)
        assert [(rule, blocks) for rule, blocks, _ in issues] == ([("model-quantization", True)] if refused else [])
        assert all(f"--quantization {wanted}, and the model's config.json says " in reason for *_, reason in issues)


def test_deepseek_v4_takes_any_and_overrides_are_not_judged() -> None:
    config: Config = {"num_attention_heads": 40, "quantization_config": {"quant_method": "fp8"}}
    assert find_model_issues({**config, "model_type": "deepseek_v4"}, quantization="awq") == []
    assert (
        find_model_issues(
            config, quantization="awq", tensor_parallel_size="3", hf_overrides='{"num_attention_heads":3}'
        )
        == []
    )


@pytest.mark.parametrize(
    ("wanted", "refused"),
    [("awq", True), ("gptq", True), ("modelopt", True), ("compressed-tensors", True), ("fp8", False), ("quark", False)],
)
def test_only_some_quantize_at_the_load(wanted: str, refused: bool) -> None:
    issues = find_model_issues({"model_type": "llama"}, quantization=wanted)
    assert [rule for rule, *_ in issues] == ["model-quantization"] * refused
    assert find_model_issues({}, quantization=wanted) == []  # no config.json was read


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_a_file_beside_config_json_says_that_a_checkpoint_is_quantized(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": null}')
    assert len(find_model_issues(read_config(tmp_path), quantization="modelopt_fp4")) == 1
    (tmp_path / name).write_text('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}')
    assert find_model_issues(read_config(tmp_path), quantization="modelopt_fp4") == []


@pytest.mark.parametrize("text", ["[]", "{", '"x"', "[" * 100_000, "{}", '{"a": ' + "9" * 5000 + "}", "x" * (5 << 20)])
def test_hostile_files_say_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GQA))
    (tmp_path / "hf_quant_config.json").write_text(text)
    assert read_config(tmp_path) == GQA
    (tmp_path / "config.json").write_text(text)
    assert read_config(tmp_path) == {}


def read_config(folder: Path) -> Config:
    return dict(weights.read_config(Files(), str(folder)))
