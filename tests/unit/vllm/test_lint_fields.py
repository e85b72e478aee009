"""Planted mistakes in the JSON of flags, in names that vLLM registers, and in flags that need each other."""

from __future__ import annotations

import json

import pytest

from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import SHIPPED
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch

SPECULATIVE, COMPILATION, TRANSFER = "speculative-config", "compilation-config", "kv-transfer-config"
MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
BLOCKS, WARNS = ("json-field", True), ("json-unknown", False)
DFLASH: dict[str, JsonValue] = {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 7}


def judged(flags: dict[str, str | None], extra: tuple[str, ...] = ()) -> list[tuple[str, bool]]:
    return [(one.rule, one.blocks) for one in rules.find_issues(Launch(flags, gpu=False, extra=extra))]


@pytest.mark.parametrize(
    ("flag", "table"),
    [
        (SPECULATIVE, DFLASH),
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
    assert judged({flag: json.dumps(table)}) == []


@pytest.mark.parametrize(
    ("flag", "key", "expected"),
    [
        (SPECULATIVE, "num_speculative_token", BLOCKS),
        (SPECULATIVE, "num_spectulative_tokens", BLOCKS),
        (SPECULATIVE, "num_draft_tokens", WARNS),
        (SPECULATIVE, "speculative_model", WARNS),
        (SPECULATIVE, "draft_model", WARNS),
        (SPECULATIVE, "methud", WARNS),
        (SPECULATIVE, "draft_tensor_paralel_size", BLOCKS),
        (SPECULATIVE, "prompt_lookup_maxx", BLOCKS),
        (SPECULATIVE, "draft_load_config.load_fromat", BLOCKS),
        (COMPILATION, "cuda_graph_mode", BLOCKS),
        (COMPILATION, "cudagraph-mode", BLOCKS),
        (COMPILATION, "cudagraph_sizes", WARNS),
        (COMPILATION, "custom_op", BLOCKS),
        (COMPILATION, "level", WARNS),
        (COMPILATION, "pass_config.fuse_norm_qant", BLOCKS),
        (COMPILATION, "pass_config.fusion", WARNS),
        (COMPILATION, "splitting_opps", BLOCKS),
        (COMPILATION, "use_cudagraph", WARNS),
        (TRANSFER, "kv_conector", BLOCKS),
        (TRANSFER, "kv_rol", WARNS),
        (TRANSFER, "kv_connector_extra_conf", WARNS),
        ("attention-config", "backends", BLOCKS),
        ("kernel-config", "moe_backends", BLOCKS),
        ("kv-events-config", "enable_kv_cache_event", BLOCKS),
        ("eplb-config", "windowsize", BLOCKS),
        ("x" * 300, "", ()),
    ],
)
def test_a_key_that_vllm_does_not_know_is_found(flag: str, key: str, expected: tuple[str, bool] | tuple[()]) -> None:
    table: JsonValue = 1
    for part in reversed(key.split(".")):
        table = {part: table}
    assert judged({flag: json.dumps(table)}) == ([expected] if expected else [])
    assert judged({flag: json.dumps(table)}, extra=(flag,)) == []
    if expected:
        assert judged({f"{flag}.{key}": "1"}) == [expected]


@pytest.mark.parametrize(
    ("flag", "key", "value", "expected"),
    [
        (SPECULATIVE, "num_speculative_tokens", "three", BLOCKS),
        (SPECULATIVE, "num_speculative_tokens", [2], BLOCKS),
        (SPECULATIVE, "num_speculative_tokens", 2.5, BLOCKS),
        (SPECULATIVE, "max_model_len", "128k", BLOCKS),
        (SPECULATIVE, "prompt_lookup_max", {}, BLOCKS),
        (SPECULATIVE, "method", "mpt", WARNS),
        (SPECULATIVE, "method", "eagle4", WARNS),
        (SPECULATIVE, "method", 3, WARNS),
        (SPECULATIVE, "moe_backend", "tritton", WARNS),
        (SPECULATIVE, "draft_sample_method", "random", WARNS),
        (SPECULATIVE, "model", 7, WARNS),
        (COMPILATION, "cudagraph_mode", "FULL_PIECEWISE", WARNS),
        (COMPILATION, "cudagraph_mode", "on", WARNS),
        (COMPILATION, "mode", "fast", WARNS),
        (COMPILATION, "custom_ops", "all", WARNS),
        (COMPILATION, "cudagraph_capture_sizes", 8, WARNS),
        (COMPILATION, "max_cudagraph_capture_size", "big", BLOCKS),
        (COMPILATION, "pass_config", [], WARNS),
        (COMPILATION, "use_inductor_graph_partition", "maybe", WARNS),
        (TRANSFER, "kv_role", "producer", WARNS),
        (TRANSFER, "kv_port", "auto", BLOCKS),
        ("attention-config", "backend", "FLASHINFERR", WARNS),
        ("reasoning-config", "reasoning_start_str", 5, WARNS),
    ],
)
def test_a_value_that_vllm_refuses_is_found(flag: str, key: str, value: JsonValue, expected: tuple[str, bool]) -> None:
    assert judged({flag: json.dumps({key: value})}) == [expected]


def test_the_correction_is_named() -> None:
    issues = rules.find_issues(
        Launch(
            {SPECULATIVE: '{"method": "mpt", "num_speculative_token": 2}', COMPILATION: '{"mode": "fast"}'}, gpu=False
        )
    )
    assert [(issue.at, issue.reason) for issue in issues] == [
        (
            f"args.{SPECULATIVE}.num_speculative_token",
            f"--{SPECULATIVE}: num_speculative_token is no key of vLLM 0.33.0: num_speculative_tokens is",
        ),
        (f"args.{COMPILATION}.mode", f"--{COMPILATION}: mode has no choice 'fast' in vLLM's own: {', '.join(MODES)}"),
        (f"args.{SPECULATIVE}.method", f"--{SPECULATIVE}: method has no choice 'mpt' in vLLM's own; did you mean mtp?"),
    ]


TOOLS, UNUSED, UNKNOWN = ("tool-choice", True), ("parser-unused", False), ("not-registered", False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--enable-auto-tool-choice --tool-call-parser hermes", []),
        ("--enable-auto-tool-choice --tool-call-parser mine --tool-parser-plugin /x.py", []),
        ("--reasoning-parser mine --reasoning-parser-plugin /x.py", []),
        ("--load-format safetensors --reasoning-parser qwen3", []),
        ("--enable-log-outputs --enable-log-requests", []),
        ("--enable-auto-tool-choice", [TOOLS]),
        ("--enable_auto_tool_choice", [TOOLS]),
        ("--enable-auto-tool-choice --reasoning-parser qwen3", [TOOLS]),
        ("--enable-auto-tool-choice --tool-call-parser=", [TOOLS]),
        ("--enable-auto-tool-choice --tool-call-parser None", [TOOLS]),
        ("--enable-auto-tool-choice --tool-parser-plugin /x.py", [TOOLS]),
        ("--enable-log-outputs", [TOOLS]),
        ("--tool-call-parser hermes", [UNUSED]),
        ("--tool-call-parser hermes --no-enable-auto-tool-choice", [UNUSED]),
        ("--tool-call-parser hermez", [UNUSED, UNKNOWN]),
        *((f"--enable-auto-tool-choice --tool-call-parser {name}", [UNKNOWN])
          for name in ("qwen3_code", "qwen3-coder", "hermes2", "Hermes", "glm_45", "deepseek-v4", "llama3", "minimax")),
        *((f"--reasoning-parser {name}", [UNKNOWN])
          for name in ("qwen", "deepseek-r1", "deepseekv4", "glm-4.5", "nemotron", "gpt_oss", "minimax_m2_think")),
        *((f"--load-format {name}", [UNKNOWN])
          for name in ("safetensor", "fast_safetensors", "instanttensors", "bitsandbytes", "gguf", "SAFETENSORS")),
        # A plugin may bring back a method that a release had.
        *((f"--quantization {name}", []) for name in ("fp8", "FP8", "gguf", "ptpc_fp8", "marlin", "None")),
        *((f"--quantization {name}", [UNKNOWN]) for name in ("fp8x", "awq-marlin", "nvfp4")),
        # The parser of 0.33 takes any text.
        *((f"--kv-cache-dtype {name}", []) for name in ("auto", "fp8", "octave_k3v4")),
        *((f"--kv-cache-dtype {name}", [UNKNOWN]) for name in ("fp9", "nvfp", "octave")),
    ],
)  # fmt: skip
def test_names_that_vllm_registers(words: str, expected: list[tuple[str, bool]]) -> None:
    assert judged(dict(first_values(words.split()))) == expected


def test_a_parser_that_is_filled_later_is_not_judged() -> None:
    assert judged({"enable-auto-tool-choice": None, "tool-call-parser": None}) == []


def test_a_registered_name_of_a_fork_is_not_judged() -> None:
    assert judged({"load-format": "mine"}, extra=("load-format",)) == []


def test_the_tables_have_what_vllm_has() -> None:
    named = {"kv-cache-dtype", "load-format", "quantization", "reasoning-parser", "tool-call-parser"}
    assert {flag.name for flag in SHIPPED.flags if flag.registered} == named
    assert len(SHIPPED.fields) > 15
    assert all(len({field.name for field in fields}) == len(fields) for fields in SHIPPED.fields.values())


@pytest.mark.parametrize("text", ["[" * 500, '{"a":' * 200 + "1" + "}" * 200, '{"": {"": 1}}', '{"\\ud800": 1}'])
def test_odd_json_is_no_fault_of_the_rules(text: str) -> None:
    judged(dict.fromkeys(SHIPPED.fields, text))
