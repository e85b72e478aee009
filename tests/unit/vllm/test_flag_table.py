"""The table of vLLM's flags, and the rules based on it; tests/bed/test_flags.py compares both with the real parser."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.bed.engine_parser import format_table
from tests.tree import Tree

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.plan_lint import PlanLint
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import ConfigError, ExitCode
from sparkd.base.lib.text import did_you_mean
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.vllm.command import ParsedFlag, first_values, parse_command
from sparkd.base.vllm.flag import FILE, SHIPPED, SHORT, FlagTable
from sparkd.base.vllm.lint import flags as flag_rules
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.tools.cli import main

SERVE = ("vllm", "serve", "/models/m")


def matched(*words: str, extra: tuple[str, ...] = ()) -> list[tuple[str, bool]]:
    flags = {"gpu-memory-utilization": "0.9", **first_values(words)}
    launch = Launch(flags=flags, gpu=False, given=parse_command((*SERVE, *words)), extra=extra)
    return [(one.rule, one.blocks) for one in rules.find_issues(launch)]


VALUE, MISPRINT = ("flag-value", True), ("flag-misprint", True)
UNKNOWN, CHOICE = ("flag-unknown", False), ("flag-choice", False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max-model-len 131072 --max_num_seqs=8 --enable-prefix-caching --no-enforce-eager", []),
        ("--max-model-len auto --max-num-batched-tokens 8k --kv-cache-memory-bytes None", []),
        ("--cudagraph-capture-sizes 1 2 4 --lora-modules a=/a b=/b", []),
        ("--compilation-config.cudagraph_mode NONE --compilation-config.custom_ops+ all", []),
        ("--moe-backend FlashInfer-CUTLASS --max-lora-rank 016", [("pointless", False)]),
        ("--gpu-memory-util 0.9", []),  # vLLM takes the beginning of a name
        *((words, [VALUE]) for words in ("--max-model-len long", "--max-model-len 1.5K", "--max-num-seqs 8k")),
        *((words, [VALUE]) for words in ("--max-num-seqs", "--max-num-seqs 4 8", "--gpu-memory-utilization 90%")),
        *((words, [VALUE]) for words in ("--cudagraph-capture-sizes 1,2,4", "--cudagraph-capture-sizes")),
        *((words, [VALUE]) for words in ("--enable-prefix-caching true", "--enable-prefix-caching=")),
        *((words, [VALUE]) for words in ("--no-enable-prefix-caching 0", "--limit-mm-per-prompt {image:1}")),
        ("--compilation-config=", [VALUE]),
        ("--compilation-config {", [("json", True)]),
        ("--max-num-seqs.x 4", [VALUE]),
        ("--compilation-config.use_inductor", [VALUE]),
        ("--gpu-mem-util 0.9", [UNKNOWN]),
        ("--max-num-seq 8", []),
        *((words, [MISPRINT]) for words in ("--max-num-seqqs 8", "--max-nmu-seqs 8", "--max-num-sets 8")),
        *((words, [MISPRINT]) for words in ("--max-numseqs 8", "--no-enable-prefix-chaching")),
        ("--no-enable-prefix-chachin", [UNKNOWN]),  # two letters
        ("--moe", [UNKNOWN]),  # of a fork, or the beginning of --moe-backend
        ("--moe auto", []),
        ("--enable-log", [UNKNOWN]),  # may be several
        ("--prots 8000", [UNKNOWN]),  # too short to be sure
        ("--use-fp65-gumbel", [UNKNOWN]),  # another number is another flag
        ("--prefix-caching", [("misnamed-flag", False)]),
        ("--fork-of-mine 1", [UNKNOWN]),
        ("--dtype nvfp4", [CHOICE]),
        ("--max-lora-rank 17", [CHOICE]),
    ],
)
def test_flags(words: str, expected: list[tuple[str, bool]]) -> None:
    assert matched(*words.split()) == expected


@pytest.mark.parametrize(
    "words", ["--fork-of-mine 1 2", "--max-num-seqqs x", "--dtype nvfp4", "--max-num-seqs auto", "--no-fork-of-mine"]
)
def test_a_forks_flags_are_not_checked(words: str) -> None:
    assert matched(*words.split()) != []
    assert matched(*words.split(), extra=("fork-of-mine", "max-num-seqqs", "dtype", "max-num-seqs")) == []


def test_a_common_ending_alone_is_no_likeness() -> None:
    assert did_you_mean("B12X_MLA_SPARSE", ("XPU_MLA_SPARSE",)) == ""
    assert did_you_mean("mpt", ("mtp",)) == "; did you mean mtp?"


def test_each_short_form_is_known() -> None:
    assert len(SHORT) == 23
    assert {"-tp", "-dp", "-q", "-n"} < SHORT.keys()
    assert first_values(["-tp", "2"]) == {"tensor-parallel-size": "2"}


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
    found = rules.find_issues(
        Launch(flags={"gpu-memory-utilization": "0.9"}, given=parse_command((*SERVE, *words.split())))
    )
    assert [one.reason for one in found] == [reason]


@pytest.mark.parametrize(
    ("argv", "judged"),
    [
        ("/opt/env/bin/vllm serve /m --a 1", True),
        ("bash /run/sparkd-user-script vllm serve /m --a 1", True),
        ("python3 -m vllm.entrypoints.openai.api_server --a 1", True),
        ("/usr/local/bin/wraps-vllm-here serve /m --a 1", True),
        *((argv, False) for argv in ("/opt/start --a 1", "ray start --a 1", "vllm bench --a 1", "")),
    ],
)
def test_only_commands_of_vllms_parser_are_checked(argv: str, judged: bool) -> None:
    assert parse_command(argv.split()) == ((ParsedFlag("a", ("1",)),) if judged else ())


def test_a_script_in_the_command_that_passes_its_words_on_is_vllms_too() -> None:
    argv = ("bash", "-lc", 'export A=b; exec vllm serve "$@"', "vllm", "/m", "--a_b=1")
    assert parse_command(argv) == (ParsedFlag("a-b", ("1",), joined=True),)


def test_a_placeholder_is_not_checked() -> None:
    found = parse_command((*SERVE, "--max-num-seqs", "{cluster.size}"), lambda text: text.startswith("{"))
    assert found == (ParsedFlag("max-num-seqs", (None,)),)
    assert not list(flag_rules.wrong_value(Launch(flags={}, given=found)))


def test_the_table_is_as_make_flags_writes_it() -> None:
    assert read_data(FILE).decode() == format_table(SHIPPED)
    assert len(SHIPPED.flags) > 300
    assert sum(map(len, SHIPPED.fields.values())) > 200


@pytest.mark.parametrize(
    "row", ['{"name": "x", "kind": "number"}', '{"name": "x"}', '{"name": "x", "kind": "int", "choice": ["1"]}']
)
def test_a_table_of_another_form_is_refused(row: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"version": "1", "flags": [{row}], "fields": {{}}}}', type=FlagTable)


def test_no_two_flags_have_one_name() -> None:
    others = [name for flag in SHIPPED.flags for name in flag.aliases if name.startswith("--")]
    negative = [flag for flag in SHIPPED.flags if flag.negative]
    assert len(SHIPPED.by_name) == len([*SHIPPED.flags]) + len(negative) + len(others)
    assert len(SHIPPED.flags) > 300


MINIMAL_RECIPE = "schema: 1\nname: x\nmodel: {path: m}\nimage: {ref: i}\n"


def test_a_recipe_names_flags_of_a_fork_as_args_does(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"{MINIMAL_RECIPE}flags: {{extra: [fork_of_mine]}}\n")
    assert load_recipe("x", [tmp_path]).recipe.flags.extra == ("fork-of-mine",)
    file.write_text(f"{MINIMAL_RECIPE}flags: {{extra: [nnodes]}}\n")
    with pytest.raises(ConfigError, match="belongs to sparkd"):
        load_recipe("x", [tmp_path])
    file.write_text(f"{MINIMAL_RECIPE}flags: {{extras: []}}\n")
    with pytest.raises(ConfigError, match=r"did you mean flags\.extra"):
        load_recipe("x", [tmp_path])


@pytest.mark.parametrize(
    ("args", "level", "says"),
    [
        ({}, Level.OK, "is known to fail"),
        ({"max-num-seqs": "8k"}, Level.BLOCK, "--max-num-seqs needs a whole number, and '8k' is none"),
        ({"max-num-seqqs": 8}, Level.BLOCK, "--max-num-seqs is"),
        ({"max-num-sequences": 8}, Level.WARN, "did you mean max-num-seqs?"),
        ({"fork-of-mine": 8}, Level.OK, "is known to fail"),
    ],
)
def test_flags_of_the_settings_are_checked_like_a_recipes(
    tree: Tree, tmp_path: Path, args: dict[str, object], level: Level, says: str
) -> None:
    (tmp_path / "x.yaml").write_text(
        f"{MINIMAL_RECIPE}nodes: {{max: 1}}\ncontainer: {{gpus: none}}\nflags: {{extra: [fork-of-mine]}}\n"
    )
    recipe = load_recipe("x", [tmp_path]).recipe
    settings = Settings.model_validate({"engine": {"recipe": "x", "args": args}})
    plan = make_plan(recipe, settings, Node(0, "127.0.0.1", "127.0.0.1", 1))
    verdict = PlanLint(plan).run(Host(tree.root))[1]
    assert verdict.level is level
    assert says in verdict.reason


def test_recipe_check_reports_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        f"{MINIMAL_RECIPE}args:\n  gpu-memory-utilization: 0.9\n  seed: one\n  max-num-sequences: 8\n  grpcs: false\n"
    )
    assert main.main(["recipe", "check", str(file)]) == ExitCode.CONFIG
    output = capsys.readouterr()
    assert f"{file}: line 7: --seed needs a whole number, and 'one' is none" in output.err
    assert f"{file}: line 8: --max-num-sequences is no flag of vLLM" in output.out
    assert f"{file}: line 9: --no-grpcs is no flag of vLLM" in output.out
