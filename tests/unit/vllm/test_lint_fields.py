"""Planted mistakes in the JSON of flags."""

import json

import pytest
from tests.unit.lint_launches import judge

from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import SHIPPED
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch

SPECULATIVE, COMPILATION, TRANSFER = "speculative-config", "compilation-config", "kv-transfer-config"
BLOCKS, WARNS = "json-field blocks", "json-unknown warns"


def judge_json(flag: str, value: JsonValue, *extra: str) -> list[str]:
    return judge(Launch({flag: json.dumps(value)}, gpu=False, extra=extra))


@pytest.mark.parametrize(
    ("flag", "table"),
    [
        (SPECULATIVE, {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7}),
        (SPECULATIVE, {"method": "mtp", "num-speculative-tokens": 2, "moe_backend": "triton"}),
        (SPECULATIVE, {"method": "ngram", "num_speculative_tokens": "5", "prompt_lookup_max": 4}),
        (SPECULATIVE, {"method": "dspark", "num_speculative_tokens": 5, "draft_sample_method": "probabilistic"}),
        (SPECULATIVE, {"draft_load_config": {"load_format": "fork", "model_loader_extra_config": {"any": 1}}}),
        (COMPILATION, {"cudagraph_mode": "full_and_piecewise", "custom_ops": ["all"], "mode": 3}),
        (COMPILATION, {"cudagraph_mode": "NONE", "mode": "vllm_compile", "pass_config": {"fuse_norm_quant": True}}),
        (COMPILATION, {"cudagraph_capture_sizes": [1, 2], "max_cudagraph_capture_size": None, "compile_sizes": None}),
        (COMPILATION, {"inductor_compile_config": {"any": {"thing": 1}}, "cudagraph_copy_inputs": "true"}),
        (TRANSFER, {"kv_connector": "MyConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"any": 1}}),
        (TRANSFER, {"kv_port": "14579", "engine_id": None}),
        ("attention-config", {"backend": "flashinfer", "flash_attn_version": 2, "use_trtllm_attention": False}),
        ("reasoning-config", {"reasoning_parser": "mine", "reasoning_start_str": "<think>"}),
        ("override-generation-config", {"temperature": 1, "anything": "goes"}),
        ("hf-overrides", {"anything": "goes"}),
    ],
)
def test_fields_that_vllm_knows_are_good(flag: str, table: JsonValue) -> None:
    assert judge_json(flag, table) == []


@pytest.mark.parametrize(
    ("flag", "key", "expected"),
    [
        (SPECULATIVE, "num_speculative_token", BLOCKS),
        (SPECULATIVE, "num_spectulative_tokens", BLOCKS),
        (SPECULATIVE, "num_draft_tokens", WARNS),
        (SPECULATIVE, "methud", WARNS),
        (SPECULATIVE, "draft_load_config.load_fromat", BLOCKS),
        (COMPILATION, "cudagraph-mode", BLOCKS),
        (COMPILATION, "custom_op", BLOCKS),
        (COMPILATION, "level", WARNS),
        (COMPILATION, "pass_config.fuse_norm_qant", BLOCKS),
        (COMPILATION, "pass_config.fusion", WARNS),
        (COMPILATION, "use_cudagraph", WARNS),
        (TRANSFER, "kv_rol", WARNS),
        ("attention-config", "backends", BLOCKS),
        ("kernel-config", "moe_backends", BLOCKS),
        ("kv-events-config", "enable_kv_cache_event", BLOCKS),
        ("eplb-config", "windowsize", BLOCKS),
    ],
)
def test_a_key_that_vllm_does_not_know_is_found(flag: str, key: str, expected: str) -> None:
    table: JsonValue = 1
    for part in reversed(key.split(".")):
        table = {part: table}
    assert judge_json(flag, table) == [expected]
    assert judge(Launch({f"{flag}.{key}": "1"}, gpu=False)) == [expected]
    assert judge_json(flag, table, flag) == [], "a fork has the flag"


def test_the_json_of_a_flag_whose_fields_are_not_known_is_not_judged() -> None:
    assert judge_json("x" * 300, {"any": 1}) == []


@pytest.mark.parametrize(
    ("flag", "key", "value", "expected"),
    [
        (SPECULATIVE, "num_speculative_tokens", "three", BLOCKS),
        (SPECULATIVE, "num_speculative_tokens", [2], BLOCKS),
        (SPECULATIVE, "num_speculative_tokens", 2.5, BLOCKS),
        (SPECULATIVE, "max_model_len", "128k", BLOCKS),
        (SPECULATIVE, "prompt_lookup_max", {}, BLOCKS),
        (SPECULATIVE, "method", "mpt", WARNS),
        (SPECULATIVE, "method", 3, WARNS),
        (SPECULATIVE, "model", 7, WARNS),
        (COMPILATION, "cudagraph_mode", "FULL_PIECEWISE", WARNS),
        (COMPILATION, "custom_ops", "all", WARNS),
        (COMPILATION, "cudagraph_capture_sizes", 8, WARNS),
        (COMPILATION, "max_cudagraph_capture_size", "big", BLOCKS),
        (COMPILATION, "pass_config", [], WARNS),
        (COMPILATION, "use_inductor_graph_partition", "maybe", WARNS),
        (TRANSFER, "kv_port", "auto", BLOCKS),
        ("attention-config", "backend", "FLASHINFERR", WARNS),
        ("reasoning-config", "reasoning_start_str", 5, WARNS),
    ],
)
def test_a_value_that_vllm_refuses_is_found(flag: str, key: str, value: JsonValue, expected: str) -> None:
    assert judge_json(flag, {key: value}) == [expected]


@pytest.mark.parametrize(
    ("flag", "key", "value", "reason"),
    [
        (SPECULATIVE, "num_speculative_token", 2, "is no key of vLLM 0.33.0: num_speculative_tokens is"),
        (SPECULATIVE, "method", "mpt", "has no choice 'mpt' in vLLM's own; did you mean mtp?"),
        (
            COMPILATION,
            "mode",
            "fast",
            "has no choice 'fast' in vLLM's own: NONE, STOCK_TORCH_COMPILE, DYNAMO_TRACE_ONCE, VLLM_COMPILE",
        ),
    ],
)
def test_the_correction_is_named(flag: str, key: str, value: JsonValue, reason: str) -> None:
    (issue,) = rules.find_issues(Launch({flag: json.dumps({key: value})}, gpu=False))
    assert issue.at == f"args.{flag}.{key}"
    assert issue.reason == f"--{flag}: {key} {reason}"


@pytest.mark.parametrize("text", ["[" * 500, '{"a":' * 200 + "1" + "}" * 200, '{"": {"": 1}}', '{"\\ud800": 1}'])
def test_odd_json_is_no_fault_of_the_rules(text: str) -> None:
    judge(Launch(dict.fromkeys(SHIPPED.fields, text), gpu=False))
