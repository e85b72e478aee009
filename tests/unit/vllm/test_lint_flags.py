"""Names and values of flags are judged by the table, and by what a fork may have beside it."""

from time import process_time

import pytest
from msgspec.structs import replace
from tests.unit.lint_launches import judge, launch_without_gpu

from sparkd.base.vllm.command import ParsedFlag
from sparkd.base.vllm.lint import flags, rules, values
from sparkd.base.vllm.lint.launch import Launch


@pytest.mark.parametrize(
    "words",
    [
        "--max-model-len 131072 --max_num_seqs=8 --enable-prefix-caching --no-enforce-eager",
        "--max-model-len auto --max-num-batched-tokens 8k --kv-cache-memory-bytes None",
        "--cudagraph-capture-sizes 1 2 4 --lora-modules a=/a b=/b",
        "--compilation-config.cudagraph_mode NONE --compilation-config.custom_ops+ all",
        "--moe-backend FlashInfer-CUTLASS --max-lora-rank 16",
        "--moe auto",
    ],
)
def test_what_vllm_reads_is_good(words: str) -> None:
    assert judge(launch_without_gpu(words)) == []


@pytest.mark.parametrize("words", ["--gpu-memory-util 0.9", "--max-num-seq 8"])
def test_the_beginning_of_one_name_alone_is_good(words: str) -> None:
    assert judge(launch_without_gpu(words)) == []


@pytest.mark.parametrize(
    "words",
    ["--max-model-len long", "--max-model-len 1.5K", "--max-num-seqs 8k", "--max-num-seqs", "--max-num-seqs 4 8",
     "--gpu-memory-utilization 90%", "--cudagraph-capture-sizes 1,2,4", "--cudagraph-capture-sizes",
     "--enable-prefix-caching true", "--enable-prefix-caching=", "--no-enable-prefix-caching 0",
     "--limit-mm-per-prompt {image:1}", "--compilation-config=", "--max-num-seqs.x 4",
     "--compilation-config.use_inductor"],
)  # fmt: skip
def test_a_value_that_no_build_reads_blocks(words: str) -> None:
    assert judge(launch_without_gpu(words)) == ["flag-value blocks"]


@pytest.mark.parametrize(
    "words",
    ["--max-num-seqqs 8", "--max-nmu-seqs 8", "--max-num-sets 8", "--max-numseqs 8", "--no-enable-prefix-chaching"],
)
def test_a_name_that_one_letter_would_make_right_blocks(words: str) -> None:
    assert judge(launch_without_gpu(words)) == ["flag-misprint blocks"]


@pytest.mark.parametrize(
    "words",
    [
        "--fork-of-mine 1",
        "--no-enable-prefix-chachin",  # two letters
        "--gpu-mem-util 0.9",
        "--moe",  # of a fork, or the beginning of --moe-backend
        "--enable-log",  # may be several
        "--prots 8000",  # too short to be sure
        "--use-fp65-gumbel",  # another number is another flag
    ],
)
def test_any_other_name_that_vllm_does_not_know_warns(words: str) -> None:
    assert judge(launch_without_gpu(words)) == ["flag-unknown warns"]


@pytest.mark.parametrize("words", ["--dtype nvfp4", "--max-lora-rank 17"])
def test_a_choice_that_vllm_does_not_have_warns(words: str) -> None:
    assert judge(launch_without_gpu(words)) == ["flag-choice warns"]


@pytest.mark.parametrize(
    ("words", "judgement"),
    [
        ("--compilation-config {", "json blocks"),
        ("--prefix-caching", "misnamed-flag warns"),
        ("--max-lora-rank 016", "pointless warns"),
    ],
)
def test_what_a_rule_of_its_own_names_is_named_once(words: str, judgement: str) -> None:
    assert judge(launch_without_gpu(words)) == [judgement]


@pytest.mark.parametrize(
    "words", ["--fork-of-mine 1 2", "--max-num-seqqs x", "--dtype nvfp4", "--max-num-seqs auto", "--no-fork-of-mine"]
)
def test_flags_that_a_recipe_names_as_a_forks_are_not_judged(words: str) -> None:
    assert judge(launch_without_gpu(words)) != []
    assert judge(launch_without_gpu(words, "fork-of-mine", "max-num-seqqs", "dtype", "max-num-seqs")) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--max-num-seqs 8k", "--max-num-seqs needs a whole number, and '8k' is none"),
        ("--moe", "--moe is read as --moe-backend, and needs a value"),
        ("--max-num-sets 8", "--max-num-sets is no flag of vLLM 0.33.0: --max-num-seqs is"),
        ("--max-model-length 8", "--max-model-length is no flag of vLLM 0.33.0; did you mean max-model-len?"),
        ("--mxfp4-backend x", "--mxfp4-backend is no flag of vLLM 0.33.0"),
        ("--dtype float17", "--dtype has no choice 'float17' in vLLM's own; did you mean float16?"),
        ("--max-num-seqs 1 2", "--max-num-seqs takes one value, and 2 are given"),
        (
            "--enable-eplb yes",
            "--enable-eplb is a switch and takes no value: bare it is on, and --no- before its name is off",
        ),
    ],
)
def test_reasons_name_the_fault_and_the_correction(words: str, reason: str) -> None:
    (issue,) = rules.find_issues(launch_without_gpu(words))
    assert issue.reason == reason


def test_a_placeholder_is_not_judged() -> None:
    assert not list(flags.wrong_value(Launch(flags={}, given=(ParsedFlag("max-num-seqs", (None,)),))))


def test_of_very_many_flags_the_first_ones_are_judged() -> None:
    launch = launch_without_gpu(" ".join(f"--x-{number}x=1" for number in range(2 * flags.MOST_FLAGS)))
    assert judge(launch) == ["flag-unknown warns"] * flags.MOST_FLAGS


@pytest.mark.parametrize("last", ["enable-prefix-caching", "no-enable-prefix-caching"])
def test_of_both_forms_of_a_switch_the_last_one_counts(last: str) -> None:
    words = f"--{last} --enable-prefix-caching --no-enable-prefix-caching --{last}"
    (issue,) = rules.find_issues(launch_without_gpu(words))
    first = {"enable-prefix-caching", "no-enable-prefix-caching"} - {last}
    assert issue.reason == f"--{last} comes after --{first.pop()}, which does nothing then"


def test_both_forms_before_the_engines_own_program_are_not_judged() -> None:
    launch = launch_without_gpu("")
    given = replace(launch, flags={"trace": None, "no-trace": None}, given=(ParsedFlag("seed", ("1",)),))
    assert not list(values.no_effect(given))


def test_both_forms_of_very_many_switches_are_found_in_a_time_that_grows_with_their_number() -> None:
    seconds = []
    for number in (1_000, 8_000):
        launch = launch_without_gpu(" ".join(f"--a{at} --no-a{at}" for at in range(number)))
        start = process_time()
        assert len([*values.no_effect(launch)]) == number
        seconds.append(process_time() - start)
    assert seconds[1] < 20 * seconds[0]
