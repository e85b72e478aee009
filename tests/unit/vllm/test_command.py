"""The flags on a command line, with their values, as vLLM's parser takes the words."""

import pytest

from sparkd.base.vllm.command import ParsedFlag, first_values, parse_command
from sparkd.base.vllm.flag import SHORT


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
def test_a_flag_has_the_first_value_of_its_last_occurrence(line: str, expected: dict[str, str | None]) -> None:
    assert first_values(line.split()) == expected


def test_each_short_form_is_known() -> None:
    assert len(SHORT) == 23
    assert {"-tp", "-dp", "-q", "-n"} < SHORT.keys()


@pytest.mark.parametrize(
    "argv",
    [
        "/opt/env/bin/vllm serve /m --a 1",
        "bash /run/sparkd-user-script vllm serve /m --a 1",
        "python3 -m vllm.entrypoints.openai.api_server --a 1",
        "/usr/local/bin/wraps-vllm-here serve /m --a 1",
    ],
)
def test_the_flags_of_vllms_parser_are_read(argv: str) -> None:
    assert parse_command(argv.split()) == (ParsedFlag("a", ("1",)),)


@pytest.mark.parametrize("argv", ["/opt/start --a 1", "ray start --a 1", "vllm bench --a 1", ""])
def test_another_program_has_no_flags_of_vllm(argv: str) -> None:
    assert parse_command(argv.split()) == ()


def test_a_script_in_the_command_that_passes_its_words_on_is_vllms_too() -> None:
    argv = ("bash", "-lc", 'export A=b; exec vllm serve "$@"', "vllm", "/m", "--a_b=1")
    assert parse_command(argv) == (ParsedFlag("a-b", ("1",), joined=True),)


def test_a_value_that_is_filled_later_is_unknown() -> None:
    argv = ("vllm", "serve", "/m", "--max-num-seqs", "{cluster.size}")
    assert parse_command(argv, lambda text: text.startswith("{")) == (ParsedFlag("max-num-seqs", (None,)),)
