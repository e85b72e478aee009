"""Names that vLLM registers, such as those of parsers, and switches that need such a name."""

import pytest
from tests.unit.lint_launches import judge, launch_without_gpu

from sparkd.base.vllm.lint.launch import Launch

TOOLS, UNUSED, UNKNOWN = "tool-choice blocks", "parser-unused warns", "not-registered warns"


@pytest.mark.parametrize(
    "words",
    [
        "--enable-auto-tool-choice --tool-call-parser hermes",
        "--enable-auto-tool-choice --tool-call-parser mine --tool-parser-plugin /x.py",
        "--reasoning-parser mine --reasoning-parser-plugin /x.py",
        "--load-format safetensors --reasoning-parser qwen3",
        "--enable-log-outputs --enable-log-requests",
        # A plugin may bring back a method that a release had.
        *(f"--quantization {name}" for name in ("fp8", "FP8", "gguf", "ptpc_fp8", "marlin", "None")),
        *(f"--kv-cache-dtype {name}" for name in ("auto", "fp8", "octave_k3v4")),
    ],
)
def test_a_name_that_vllm_or_a_plugin_registers_is_good(words: str) -> None:
    assert judge(launch_without_gpu(words)) == []


@pytest.mark.parametrize(
    "words",
    [
        "--enable-auto-tool-choice",
        "--enable_auto_tool_choice",
        "--enable-auto-tool-choice --reasoning-parser qwen3",
        "--enable-auto-tool-choice --tool-call-parser=",
        "--enable-auto-tool-choice --tool-call-parser None",
        "--enable-auto-tool-choice --tool-parser-plugin /x.py",
        "--enable-log-outputs",
    ],
)
def test_a_switch_without_the_flag_that_it_needs_blocks(words: str) -> None:
    assert judge(launch_without_gpu(words)) == [TOOLS]


@pytest.mark.parametrize("switch", ["", "--no-enable-auto-tool-choice"])
def test_a_parser_that_no_switch_turns_on_warns(switch: str) -> None:
    assert judge(launch_without_gpu(f"--tool-call-parser hermes {switch}")) == [UNUSED]


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        (
            "enable-auto-tool-choice --tool-call-parser",
            "qwen3_code qwen3-coder hermes2 Hermes glm_45 deepseek-v4 llama3 minimax",
        ),
        ("reasoning-parser", "qwen deepseek-r1 deepseekv4 glm-4.5 nemotron gpt_oss minimax_m2_think"),
        ("load-format", "safetensor fast_safetensors instanttensors bitsandbytes gguf SAFETENSORS"),
        ("quantization", "fp8x awq-marlin nvfp4"),
        ("kv-cache-dtype", "fp9 nvfp octave"),  # the parser of 0.33 takes any text
    ],
)
def test_a_name_that_nothing_registers_warns(flag: str, names: str) -> None:
    for name in names.split():
        assert judge(launch_without_gpu(f"--{flag} {name}")) == [UNKNOWN], name


def test_a_parser_that_is_filled_later_is_not_judged() -> None:
    assert judge(Launch({"enable-auto-tool-choice": None, "tool-call-parser": None}, gpu=False)) == []


def test_a_registered_name_of_a_fork_is_not_judged() -> None:
    assert judge(launch_without_gpu("--load-format mine", "load-format")) == []
