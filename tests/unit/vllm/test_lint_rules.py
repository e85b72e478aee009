"""The rules of plan-lint on flags and on the image's name."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.lint_launches import GOOD, LAUNCH, judge, launch_without_gpu, with_flags

from sparkd.base.vllm.lint import predicates, rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import ModelLimits, parse_limits

DRAFTS = '{"method":"%s","num_speculative_tokens":%s}'


def test_what_is_known_to_serve_well_is_good() -> None:
    assert judge(LAUNCH) == []
    assert judge(Launch({}, gpu=False)) == []


@pytest.mark.parametrize(
    ("flags", "judgement"),
    [
        ({"compilation-config": '{"cudagraph_mode": FULL'}, "json blocks"),
        ({"compilation-config": "'{}'"}, "json blocks"),
        ({"compilation-config": "true"}, "json blocks"),
        ({"speculative-config": "3"}, "json blocks"),
        ({"speculative-config": "{“method”:“mtp”}"}, "json blocks"),
        ({"hf-overrides": '{"a": 1'}, "json blocks"),
        ({"reasoning-config": "[]"}, "json blocks"),
        ({"reasoning-config": "[" * 100_000}, "json blocks"),
        ({"kv-transfer-config": '{"a": 80x}'}, "json blocks"),
        ({"default-chat-template-kwargs": "thinking=true"}, "json blocks"),
        ({"prefix-caching": None}, "misnamed-flag warns"),
        ({"no-enable-log-requests": None, "rope-scaling": "{}"}, "misnamed-flag warns"),
        ({"gpu-memory-utilization": "0.92"}, "high-memory-share warns"),
        ({"gpu-memory-utilization": "0.98"}, "high-memory-share warns"),
        ({"max-num-batched-tokens": "16384", "no-enable-chunked-prefill": None}, "unchunked-prefill blocks"),
        ({"max-num-batched-tokens": "7"}, "batch blocks"),
        ({"max-model-len": "612342", "max-num-seqs": "1"}, "pool-length warns"),
        ({"max-num-seqs": "19"}, "pool-sequences warns"),
        ({"enforce-eager": None}, "eager warns"),
        ({"enforce-eager": None, "compilation-config": "{}"}, "eager warns"),
        ({"max-num-seqs": "0"}, "out-of-range blocks"),
        ({"max-num-batched-tokens": "-5", "max-num-seqs": "1"}, "out-of-range blocks"),
        ({"max-model-len": "0k"}, "out-of-range blocks"),
        ({"max-model-len": "-5"}, "out-of-range blocks"),
        ({"compilation-config": '{"mode": 9}'}, "out-of-range blocks"),
        ({"speculative-config": DRAFTS % ("ngram", 0)}, "out-of-range blocks"),
        ({"speculative-config": DRAFTS % ("eagle3", 3)}, "out-of-range blocks"),
        ({"speculative-config": DRAFTS % ("deepseek_mtp", 3)}, "drafts warns"),
        ({"speculative-config": DRAFTS % ("mtp", 3)}, "drafts warns"),
        ({"speculative-config": DRAFTS % ("dspark", 8)}, "drafts warns"),
        ({"seed": "010"}, "pointless warns"),
        ({"disable-log-stats": None}, "no-counters warns"),
        ({"cpu-offload-gb": "0.5"}, "pointless warns"),
        ({"kv-offloading-size": "16"}, "pointless warns"),
    ],
)
def test_each_rule_finds_its_fault(flags: dict[str, str | None], judgement: str) -> None:
    assert judge(with_flags(LAUNCH, flags)) == [judgement]


@pytest.mark.parametrize(
    "flags",
    [
        {"compilation-config": "3"},
        {"compilation-config": None},
        {"hf-overrides": "my.module.function"},
        {"kv-transfer-config": ""},
        {"kv-transfer-config": '{"kv_port": 80m, "engine_id": "x 1k"}'},
        {"override-generation-config": '{"temperature":0.0}'},
        {"enable-prefix-caching": None},
        {"gpu-memory-utilization": "0.912"},
        {"gpu-memory-utilization": "nan"},
        {"gpu-memory-utilization": "much"},
        {"max-num-batched-tokens": "131072", "no-enable-chunked-prefill": None},
        {"max-num-batched-tokens": "8"},
        {"max-model-len": "612341", "max-num-seqs": "1"},
        {"max-num-seqs": "18"},
        {"max-model-len": "-1"},
        {"compilation-config": '{"mode": 3}'},
        {"speculative-config": DRAFTS % ("eagle3", 3), "speculative-config.model": "/m"},
        {"enforce-eager": None, "compilation-config": '{"cudagraph_mode":"none"}'},
        {"speculative-config": DRAFTS % ("mtp", '"3"')},
        {"speculative-config": DRAFTS % ("dspark", 7)},
        {"speculative-config": DRAFTS % ("ngram", 7)},
        {"seed": "07"},
        {"cpu-offload-gb": "0", "kv-offloading-size": "None"},
        {"seed": "018"},
        {"seed": "0" * 5000 + "10"},
        {"revision": "0123456"},
    ],
)
def test_what_is_at_the_limit_of_a_rule_or_not_its_subject_is_good(flags: dict[str, str | None]) -> None:
    assert judge(with_flags(LAUNCH, flags)) == []


@pytest.mark.parametrize("image", ["r/i:v1-x86_64", "amd64/vllm", "my.org:5000/amd64/vllm:1", "vllm:v1-amd64"])
def test_an_image_whose_name_says_x86_warns(image: str) -> None:
    assert judge(replace(LAUNCH, texts=(("image.ref", image),))) == ["image-machine warns"]


@pytest.mark.parametrize("image", ["my.org/vllm-amd64-arm64:1", "r/vllm-aarch64-x86_64", "registry.amd64.org/vllm"])
def test_an_image_whose_name_says_arm_too_or_of_whose_registry_it_is_the_name_is_good(image: str) -> None:
    assert judge(replace(LAUNCH, texts=(("image.ref", image),))) == []


@pytest.mark.parametrize(
    ("words", "fetched"),
    [
        ("--tokenizer org/m --hf-config-path /models/m", ["tokenizer"]),
        ("--hf-config-path org/m --tokenizer /models/m", ["hf-config-path"]),
        ("--speculative-config.model org/d --speculative-config.method eagle3", ["speculative-config"]),
        ("--lora-modules a=/models/a b=org/b", ["lora-modules"]),
        ("--tokenizer m --tokenizer-mode a/b --lora-modules {}", []),
    ],
)
def test_a_further_model_by_its_name_on_the_hub_warns_unless_a_mount_has_the_hubs_cache(
    words: str, fetched: list[str]
) -> None:
    launch = launch_without_gpu(words)
    assert [issue.at for issue in rules.find_issues(launch) if issue.rule == "fetched"] == [
        f"args.{f}" for f in fetched
    ]
    for target, env in {
        "/root/.cache/huggingface": {},
        "/h/.cache": {"HOME": "/h"},
        "/x/huggingface/hub": {"HOME": "/h", "XDG_CACHE_HOME": "/x"},
        "/hub": {"HF_HOME": "/hub"},
        "/c": {"HF_HUB_CACHE": "/c", "HF_HOME": "/hub"},
        "/elsewhere": {"HF_HUB_OFFLINE": "1"},
    }.items():
        assert "fetched warns" not in judge(replace(launch, env=env, mounts=("/other", target)))


def test_a_model_of_another_kind_may_be_eager() -> None:
    other = replace(LAUNCH, model=ModelLimits("nemotron_h", 1_048_576))
    assert judge(with_flags(other, {"enforce-eager": None, "compilation-config": "{}"})) == []


@pytest.mark.parametrize("kind", ["qwen3_5", ""])
def test_drafts_of_another_model_may_be_more(kind: str) -> None:
    """As many as its author measured best: published recipes have 14 with DSpark of Qwen3.8, 3 with MTP of GLM-5.2."""
    other = replace(LAUNCH, model=ModelLimits(kind), texts=(("model.path", "/models/GLM-5.2-NVFP4"),))
    assert judge(with_flags(other, {"speculative-config": DRAFTS % ("dspark", 14)})) == []


def test_a_model_that_is_away_is_known_by_its_folder() -> None:
    named = replace(LAUNCH, model=ModelLimits(), texts=(("model.path", "/models/DeepSeek-V4-Flash"),))
    assert judge(with_flags(named, {"speculative-config": DRAFTS % ("deepseek_mtp", 3)})) == ["drafts warns"]


def test_a_left_out_share_of_memory_is_vllms_own_unless_the_cache_has_a_size() -> None:
    silent = replace(LAUNCH, flags={flag: text for flag, text in GOOD.items() if flag != "gpu-memory-utilization"})
    assert judge(silent) == ["high-memory-share warns"]
    assert judge(with_flags(silent, {"kv-cache-memory-bytes": "1G"})) == []
    assert judge(replace(silent, gpu=False)) == []


@pytest.mark.parametrize(
    ("flags", "judgement"),
    [
        (
            {"compilation-config": None, "compilation-config.cudagraph_mode": "FULL", "enforce-eager": None},
            "eager warns",
        ),
        ({"speculative-config.num_speculative_tokens": "3"}, "drafts warns"),
    ],
)
def test_fields_behind_dots_count_as_json_does(flags: dict[str, str | None], judgement: str) -> None:
    assert judge(with_flags(LAUNCH, flags)) == [judgement]


@pytest.mark.parametrize(
    ("flag", "text", "place"),
    [
        ("compilation-config", '{"cudagraph_mode": FULL', "Expecting value, line 1 column 20"),  # as vLLM 0.32 says
        ("speculative-config", "{“method”:“mtp”}", "line 1 column 2; it holds “"),
    ],
)
def test_broken_json_says_where(flag: str, text: str, place: str) -> None:
    (issue,) = rules.find_issues(with_flags(LAUNCH, {flag: text}))
    assert issue.reason.startswith(f"--{flag} is no JSON: ")
    assert place in issue.reason


def test_every_rule_has_its_own_name() -> None:
    assert len({rule.name for rule in rules.RULES}) == len(rules.RULES)


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
    for issue in rules.find_issues(Launch(flags, env, model=model, pool_tokens=1)):
        assert issue.reason
        assert issue.hint
