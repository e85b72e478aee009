"""The rules of plan-lint, one by one, and what they read of flags and of a model's config.json."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.lint_launches import GOOD

from sparkd.base.vllm.command import first_values, parse_command
from sparkd.base.vllm.flag import SHIPPED
from sparkd.base.vllm.lint import predicates, rules
from sparkd.base.vllm.lint.flags import MOST_FLAGS
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits

LAUNCH = Launch(GOOD, pool_tokens=612_341, model=ModelLimits("deepseek_v4", 1_048_576))
DRAFTS = '{"method":"%s","num_speculative_tokens":%s}'


def seen(launch: Launch, **flags: str | None) -> list[str]:
    changed = {name.replace("_", "-"): text for name, text in flags.items()}
    return found(replace(launch, flags={**launch.flags, **changed}))


def found(launch: Launch) -> list[str]:
    return [one.rule for one in rules.find_issues(launch)]


def test_an_address_of_one_node_is_none_of_all() -> None:
    fixed = {"VLLM_HOST_IP": "10.0.0.2", "MASTER_ADDR": "10.0.0.1", "NCCL_COMM_ID": "10.0.0.1:1", "UCX_TLS": "rc"}
    several = replace(
        LAUNCH, env={**fixed, "NCCL_IB_ADDR_RANGE": "10.0.0.0", "GLOO_SOCKET_IFNAME": "10.0.0.1"}, nodes=2
    )
    reasons = [issue.reason for issue in rules.find_issues(several)]
    assert [reason.partition(":")[0].partition("=")[0] for reason in reasons] == [
        "VLLM_HOST_IP", "MASTER_ADDR", "GLOO_SOCKET_IFNAME",
    ]  # fmt: skip
    assert reasons[0] == "VLLM_HOST_IP=10.0.0.2: all nodes get the address of one"
    assert found(replace(several, nodes=1)) == []
    assert found(replace(several, addresses=("10.0.0.2", "10.0.0.1"))) == [], "of this node and the head"
    (other,) = rules.find_issues(replace(several, addresses=("10.0.0.1", "10.0.0.1")))
    assert other.reason == "VLLM_HOST_IP=10.0.0.2: this node is 10.0.0.1, the head 10.0.0.1"


@pytest.mark.parametrize("address", ["fd00::2", "fe80::2%enp1s0f0np0"])
def test_sparkds_own_address_of_version_6_is_none_of_another_node(address: str) -> None:
    several = replace(LAUNCH, env={"VLLM_HOST_IP": address, "MASTER_ADDR": "fd00::1"}, nodes=2)
    assert found(replace(several, addresses=(address, "fd00::1"))) == []
    assert found(replace(several, addresses=("fd00::1", "fd00::1"))) == ["one-address"]


@pytest.mark.parametrize(
    ("image", "is_other"),
    [
        ("r/i:v1-x86_64", True), ("amd64/vllm", True), ("my.org:5000/amd64/vllm:1", True), ("vllm:v1-amd64", True),
        ("my.org/vllm-amd64-arm64:1", False), ("r/vllm-aarch64-x86_64", False), ("registry.amd64.org/vllm", False),
    ],
)  # fmt: skip
def test_an_image_is_for_another_machine_where_its_name_says_that_alone(image: str, is_other: bool) -> None:
    assert found(replace(LAUNCH, texts=(("image.ref", image),))) == ["image-machine"] * is_other


def test_what_is_known_to_serve_well_is_good() -> None:
    assert rules.find_issues(LAUNCH) == ()
    assert rules.find_issues(Launch({}, gpu=False)) == ()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"compilation_config": '{"cudagraph_mode": FULL'}, ["json"]),
        ({"compilation_config": "'{}'"}, ["json"]),
        ({"compilation_config": "3"}, []),
        ({"compilation_config": "true"}, ["json"]),
        ({"compilation_config": None}, []),
        ({"speculative_config": "3"}, ["json"]),
        ({"speculative_config": "{“method”:“mtp”}"}, ["json"]),
        ({"hf_overrides": "my.module.function"}, []),
        ({"hf_overrides": '{"a": 1'}, ["json"]),
        ({"reasoning_config": "[]"}, ["json"]),
        ({"reasoning_config": "[" * 100_000}, ["json"]),
        ({"kv_transfer_config": ""}, []),
        ({"kv_transfer_config": '{"kv_port": 80m, "engine_id": "x 1k"}'}, []),
        ({"kv_transfer_config": '{"a": 80x}'}, ["json"]),
        ({"override_generation_config": '{"temperature":0.0}'}, []),
        ({"default_chat_template_kwargs": "thinking=true", "reasoning_config": "x"}, ["json", "json"]),
        ({"prefix_caching": None}, ["misnamed-flag"]),
        ({"enable_prefix_caching": None}, []),
        ({"no_enable_log_requests": None, "rope_scaling": "{}"}, ["misnamed-flag"]),
        ({"gpu_memory_utilization": "0.912"}, []),
        ({"gpu_memory_utilization": "0.92"}, ["high-memory-share"]),
        ({"gpu_memory_utilization": "0.95"}, ["high-memory-share"]),
        ({"gpu_memory_utilization": "0.98"}, ["high-memory-share"]),
        ({"gpu_memory_utilization": "nan"}, []),
        ({"gpu_memory_utilization": "much"}, []),
        ({"max_num_batched_tokens": "16384", "no_enable_chunked_prefill": None}, ["unchunked-prefill"]),
        ({"max_num_batched_tokens": "131072", "no_enable_chunked_prefill": None}, []),
        ({"max_num_batched_tokens": "7"}, ["batch"]),
        ({"max_num_batched_tokens": "8"}, []),
        ({"max_model_len": "612341", "max_num_seqs": "1"}, []),
        ({"max_model_len": "612342", "max_num_seqs": "1"}, ["pool-length"]),
        ({"max_model_len": "1048577", "max_num_seqs": "1"}, ["model-length", "pool-length"]),
        ({"max_num_seqs": "18"}, []),
        ({"max_num_seqs": "19"}, ["pool-sequences"]),
        ({"enforce_eager": None}, ["eager"]),
        ({"enforce_eager": None, "compilation_config": "{}"}, ["eager"]),
        ({"max_num_seqs": "0"}, ["out-of-range"]),
        ({"max_num_batched_tokens": "-5", "max_num_seqs": "1"}, ["out-of-range"]),
        ({"max_model_len": "0k"}, ["out-of-range"]),
        ({"max_model_len": "-5"}, ["out-of-range"]),
        ({"max_model_len": "-1"}, []),
        ({"compilation_config": '{"mode": 9}'}, ["out-of-range"]),
        ({"compilation_config": '{"mode": 3}'}, []),
        ({"speculative_config": DRAFTS % ("ngram", 0)}, ["out-of-range"]),
        ({"speculative_config": DRAFTS % ("eagle3", 3)}, ["out-of-range"]),
        ({"speculative_config": DRAFTS % ("eagle3", 3), "speculative_config.model": "/m"}, []),
        ({"enforce_eager": None, "compilation_config": '{"cudagraph_mode":"none"}'}, []),
        ({"speculative_config": DRAFTS % ("deepseek_mtp", 3)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("mtp", 3)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("mtp", '"3"')}, []),
        ({"speculative_config": DRAFTS % ("dspark", 5)}, []),
        ({"speculative_config": DRAFTS % ("dspark", 7)}, []),
        ({"speculative_config": DRAFTS % ("dspark", 8)}, ["drafts"]),
        ({"speculative_config": DRAFTS % ("ngram", 7)}, []),
        ({"seed": "010"}, ["pointless"]),
        ({"seed": "07"}, []),
        ({"seed": "018"}, []),
        ({"seed": "0" * 5000 + "10"}, []),
        ({"revision": "0123456"}, []),
    ],
)
def test_flags(flags: dict[str, str | None], expected: list[str]) -> None:
    assert seen(LAUNCH, **flags) == expected


def test_a_model_of_another_kind_may_be_eager() -> None:
    other = replace(LAUNCH, model=ModelLimits("nemotron_h", 1_048_576))
    assert seen(other, enforce_eager=None, compilation_config="{}") == []


def test_drafts_of_another_model_may_be_more() -> None:
    """As many as its author measured best: published recipes have 14 with DSpark of Qwen3.8, 3 with MTP of GLM-5.2."""
    for model in (ModelLimits("qwen3_5", 1_048_576), ModelLimits("", 1_048_576)):
        other = replace(LAUNCH, model=model, texts=(("model.path", "/models/GLM-5.2-NVFP4"),))
        assert seen(other, speculative_config=DRAFTS % ("dspark", 14)) == []
    named = replace(LAUNCH, model=ModelLimits(), texts=(("model.path", "/models/DeepSeek-V4-Flash"),))
    assert seen(named, speculative_config=DRAFTS % ("deepseek_mtp", 3)) == ["drafts"]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("VLLM_TP_SIZE", []),  # of public launch scripts; VLLM_DP_SIZE is vLLM's
        ("VLLM_DP_SIZ", ["variable-misprint"]),
        ("VLLM_HOST_PI", ["variable-misprint"]),
        ("VLLM_USE_FLASHINFER_MOE_FP4", []),
        ("VLLM_USE_FASTOKEMS", ["variable-misprint"]),
    ],
)
def test_a_short_word_with_another_letter_is_another_word(name: str, rules: list[str]) -> None:
    assert found(replace(LAUNCH, env={name: "1"})) == rules


@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ("rocep1s0f0,roceP2p1s0f0", ""),
        ("=rocep1s0f0:1", ""),
        ("rocep1s0f0,mlx5_1", "mlx5_1"),
        ("rocep1s0f0:1,mlx5_1:1", "mlx5_1"),
        ("^=mlx5_0,mlx5_1", "^=mlx5_0"),
        ("=mlx5_0", "=mlx5_0"),
        ("xmlx5_0", ""),
    ],
)
def test_each_device_of_a_list_is_judged(devices: str, shown: str) -> None:
    issues = rules.find_issues(replace(LAUNCH, env={"NCCL_IB_HCA": devices}))
    name = shown.lstrip("^=")
    expected = [f"NCCL_IB_HCA={shown}: no device of a Spark is called {name}"] if shown else []
    assert [issue.reason for issue in issues] == expected


def test_of_very_many_flags_the_first_ones_are_judged() -> None:
    words = [f"--x-{number}x=1" for number in range(2 * MOST_FLAGS)]
    given = parse_command(["vllm", "serve", "/m", *words])
    assert found(Launch({}, gpu=False, given=given)) == ["flag-unknown"] * MOST_FLAGS


def test_variables_are_judged_by_what_is_known_of_them() -> None:
    launch = replace(LAUNCH, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})
    (issue,) = rules.find_issues(launch)
    assert not issue.blocks
    assert f"{SHIPPED.version}: since 0.15" in issue.reason
    assert rules.is_doubtful(launch), "an older image may read it"
    image = replace(SHIPPED, image="i:1")
    assert not rules.find_issues(replace(launch, vllm=image))[0].blocks
    assert rules.find_issues(replace(launch, vllm=replace(image, variables=()))) == ()
    later = replace(LAUNCH, env={"VLLM_DP_SIZE": "1"}, vllm=replace(image, variables=("VLLM_DP_SIZES",)))
    assert rules.find_issues(later) == (), "another vLLM has it"


def test_a_left_out_share_of_memory_is_vllms_own_unless_the_cache_has_a_size() -> None:
    flags = {name: text for name, text in GOOD.items() if name != "gpu-memory-utilization"}
    assert seen(replace(LAUNCH, flags=flags)) == ["high-memory-share"]
    assert seen(replace(LAUNCH, flags=flags), kv_cache_memory_bytes="1G") == []
    assert seen(replace(LAUNCH, flags=flags, gpu=False)) == []


def test_fields_behind_dots_count_as_json_does() -> None:
    dotted = {**GOOD, "compilation-config": None, "compilation-config.cudagraph_mode": "FULL", "enforce-eager": None}
    assert found(replace(LAUNCH, flags=dotted)) == ["eager"]
    dotted = {**GOOD, "speculative-config.num_speculative_tokens": "3"}
    assert found(replace(LAUNCH, flags=dotted)) == ["drafts"]


def test_a_kv_connector_blocks_beside_expandable_segments() -> None:
    moving = replace(LAUNCH, env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"})
    assert seen(moving) == []
    assert seen(moving, kv_offloading_size="8") == ["connector-memory"]
    assert seen(moving, kv_transfer_config='{"kv_connector":"NixlConnector"}') == ["connector-memory"]
    assert seen(moving, kv_transfer_config='{"kv_role":"kv_both"}') == []
    assert seen(moving, kv_offloading_size="8", enable_cumem_allocator=None) == []
    assert seen(LAUNCH, kv_offloading_size="8") == []


def test_forked_workers_warn() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}))
    assert (one.rule, one.blocks, one.at) == ("fork", False, "env.VLLM_WORKER_MULTIPROC_METHOD")
    assert rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"})) == ()
    assert rules.find_issues(replace(LAUNCH, env={"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, gpu=False)) == ()


def test_a_length_beyond_the_models_own_blocks_and_warns_where_it_is_allowed() -> None:
    short = replace(LAUNCH, model=ModelLimits("llama", 4096))
    (one,) = rules.find_issues(short)
    assert (one.rule, one.blocks) == ("model-length", True)
    assert one.reason == "--max-model-len 131072, and the model's config.json allows 4096"
    (one,) = rules.find_issues(replace(short, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}))
    assert (one.rule, one.blocks) == ("long-by-will", False)
    assert seen(short, hf_overrides='{"max_position_embeddings":131072}') == []
    assert seen(replace(short, flags={**GOOD, "hf-overrides.max_position_embeddings": "131072"})) == []


def test_a_pool_that_was_measured_at_another_length_warns_alone() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "max-model-len": "700000", "max-num-seqs": "1"}))
    assert (one.rule, one.blocks) == ("pool-length", False)


def test_broken_json_says_where() -> None:
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "compilation-config": '{"cudagraph_mode": FULL'}))
    assert one.reason == "--compilation-config is no JSON: Expecting value, line 1 column 20"  # as vLLM 0.32 says
    (one,) = rules.find_issues(replace(LAUNCH, flags={**GOOD, "speculative-config": "{“method”:“mtp”}"}))
    assert "line 1 column 2; it holds “" in one.reason


def test_every_rule_has_its_own_name() -> None:
    assert len({rule.name for rule in rules.RULES}) == len(rules.RULES)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve /m --max-model-len 5 --enable-x --y=1", {"max-model-len": "5", "enable-x": None, "y": "1"}),
        ("--max_model_len=5 --max-model-len 6", {"max-model-len": "6"}),
        ("--compilation_config.cudagraph_mode=NONE", {"compilation-config.cudagraph_mode": "NONE"}),
        ("-tp 2 -cc={} -x 3", {"tensor-parallel-size": "2", "compilation-config": "{}"}),
        ("--a=--b --a= -- --", {"a": ""}),
        ("--allowed a b c", {"allowed": "a"}),
    ],
)
def test_words(line: str, expected: dict[str, str | None]) -> None:
    assert first_values(line.split()) == expected


@pytest.mark.parametrize(
    ("text", "amount"),
    [("131072", 131072), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("1M", 1 << 20), ("2g", 2 * 10**9),
     ("25.6", None), ("25.6K", None), ("1T", 1 << 40), (" 5 ", 5), ("", None), ("auto", None), ("-1", None),
     ("1" * 99, None), ("\u0661", None), ("1e3", None)],
)  # fmt: skip
def test_amounts_are_read_as_vllm_does(text: str, amount: int | None) -> None:
    assert Launch({"max-model-len": text}).amount("max-model-len") == amount


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
def test_a_models_own_length(config: dict[str, object], longest: int | None) -> None:
    assert parse_limits(config).max_length == longest


FLAG = st.sampled_from(
    [*GOOD, *predicates.JSON_FLAGS, *predicates.JSON_OR_TEXT, *predicates.RENAMED, "enforce-eager", "x", "", "a.b", ".",
     "quantization", "tensor-parallel-size"]
)  # fmt: skip
KEY = st.sampled_from(
    ["cudagraph_mode", "custom_ops", "method", "num_speculative_tokens", "max_position_embeddings", "rope_scaling",
     "rope_parameters", "rope_type", "factor", "model_type", "text_config", "model_max_length", "x",
     "num_attention_heads", "num_key_value_heads", "quantization_config", "quant_method"]
)  # fmt: skip
LEAF = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=4)
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=3))
TEXT = VALUE.map(json.dumps) | st.text(max_size=12) | st.sampled_from(["all", "0.9", "9" * 5000, "1k", "\ud800", "$"])


@pytest.mark.parametrize(
    ("gpus", "visible", "why"),
    [
        (1, "0", ""),
        (1, "1", "a Spark has one GPU, 0"),
        (1, "0,1", "a Spark has one GPU, 0"),
        (2, "0,1", ""),
        (2, "2,5", ""),
        (2, "0", "nodes.gpus of the recipe is 2"),
        (2, "0,1,2", "nodes.gpus of the recipe is 2"),
    ],
)
def test_an_engine_sees_as_many_gpus_as_the_recipe_has(gpus: int, visible: str, why: str) -> None:
    issues = rules.find_issues(replace(LAUNCH, env={"CUDA_VISIBLE_DEVICES": visible}, gpus=gpus))
    assert [issue.reason for issue in issues] == ([f"CUDA_VISIBLE_DEVICES={visible}: {why}"] if why else [])


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(FLAG, st.none() | TEXT, max_size=5), st.dictionaries(st.text(max_size=3), TEXT, max_size=2), VALUE
)
@example({"max-model-len": "5"}, {}, {"max_position_embeddings": float("inf")})
@example({"speculative-config": '{"method":[],"num_speculative_tokens":true}'}, {}, None)
def test_no_flags_environment_or_config_are_too_odd(
    flags: dict[str, str | None], env: dict[str, str], config: object
) -> None:
    model = parse_limits(config) if isinstance(config, dict) else ModelLimits()
    for one in rules.find_issues(Launch(flags, env, model=model, pool_tokens=1)):
        assert one.reason
        assert one.hint
