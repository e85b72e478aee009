"""The vLLM of an image is queried for its own flags: by a made package, in a real python, with a real bash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.lint_launches import judge, launch_without_gpu
from tests.unit.vllm_answers import ONE_FLAG, packed

from sparkd.base.vllm.flag import SHIPPED, FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.own_table import EMPTY, MOST_NAMES, parse_answer, render_query

IMAGE = "fork:1"
ARGS = """
print("WARNING: noise on stdout")
def make_arg_parser(parser):
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--enable-fork", action="store_true")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fork4"])
    return parser
"""
CONFIG = """
from typing import Annotated, Literal
from pydantic.dataclasses import dataclass

@dataclass(config={"extra": "forbid"})
class KernelConfig:
    backend: Annotated[Literal["auto", "own"], "a note"] | None = None

@dataclass
class VllmConfig:
    kernel_config: Annotated[KernelConfig, "a note"] | None = None

@dataclass
class Other:
    size: int = 1

ModelConfig = ParallelConfig = CacheConfig = ObservabilityConfig = Other
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """vLLM 0.1.dev1 with a flag of a fork, and without --max-num-seqs."""
    files = {
        "vllm/__init__.py": "",
        "vllm/envs.py": 'environment_variables = {"VLLM_FORK_SPEED": lambda: 1}',
        "vllm/utils/__init__.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/cli_args.py": ARGS,
        "vllm-0.1.dev1.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.1.dev1+g83cb22a0e\n",
        "bin/vllm": f"#!{sys.executable}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bin/vllm").chmod(0o755)
    return tmp_path


def query_log(site: Path) -> str:
    env = {"PYTHONPATH": str(site), "PATH": f"{site}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    answer = subprocess.run(["bash", "-c", render_query()], env=env, capture_output=True, text=True, check=True)
    return answer.stderr + answer.stdout


def query(site: Path) -> FlagTable:
    return parse_answer(query_log(site), IMAGE)


def test_the_table_has_what_the_images_own_vllm_has(site: Path) -> None:
    table = query(site)
    assert table.version == "0.1.dev1+g83cb22a0e"
    assert table.image == IMAGE
    assert table.variables == ("VLLM_FORK_SPEED",)
    assert judge(launch_without_gpu("--enable-fork --kv-cache-dtype fork4 --max-model-len 8", table=table)) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--max-num-seqs 4", "--max-num-seqs is no flag of the vLLM in fork:1; vLLM 0.12 to 0.33 have it"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype has no choice 'fp8' in vLLM's own: auto, fork4"),
    ],
)
def test_what_the_images_own_vllm_lacks_is_certain_to_fail(site: Path, words: str, reason: str) -> None:
    (issue,) = rules.find_issues(launch_without_gpu(words, table=query(site)))
    assert issue.blocks
    assert issue.reason.startswith(reason)


def test_a_judgement_names_whose_table_it_is_by(site: Path) -> None:
    assert IMAGE in query(site).judged_by
    assert SHIPPED.version in SHIPPED.judged_by


@pytest.mark.parametrize("folder", ["common", "launchers", "openai"])
def test_each_place_of_the_parser_is_known(site: Path, folder: str) -> None:
    """vLLM 0.33 has it in common, 0.32 in launchers, 0.24 to 0.12 in openai."""
    for name in ("__init__.py", "cli_args.py"):
        moved = site / "vllm/entrypoints" / folder / name
        moved.parent.mkdir(exist_ok=True)
        (site / "vllm/entrypoints/openai" / name).rename(moved)
    assert query(site).by_name.keys() >= {"enable-fork"}


def test_a_hidden_no_form_is_taken(site: Path) -> None:
    """vLLM 0.33 takes them out of the action, not out of its parser."""
    file = site / "vllm/entrypoints/openai/cli_args.py"
    added = 'parser.add_argument("--enable-fork", '
    hidden = ARGS.replace(added, f'{added} "--no-enable-fork", ').replace(
        '"store_true")', '"store_true").option_strings.pop()'
    )
    file.write_text(hidden)
    assert judge(launch_without_gpu("--no-enable-fork", table=query(site))) == []


def test_another_long_name_of_a_flag_is_judged_as_the_flag(site: Path) -> None:
    """vLLM 0.33 takes --disable-x for --no-enable-x, and --device-memory-utilization."""
    file = site / "vllm/entrypoints/openai/cli_args.py"
    file.write_text(ARGS.replace('"--max-model-len"', '"--max-model-len", "--longest-text"'))
    table = query(site)
    assert judge(launch_without_gpu("--longest-text 8", table=table)) == []
    assert judge(launch_without_gpu("--longest-text eight", table=table)) == ["flag-value blocks"]


def test_types_with_a_note_are_taken_apart(site: Path) -> None:
    (site / "vllm/config.py").write_text(CONFIG)
    (site / "vllm/entrypoints/openai/cli_args.py").write_text(
        ARGS.replace("    return", '    parser.add_argument("--kernel-config")\n    return')
    )
    fields = {flag: {field.name: field.choices for field in known} for flag, known in query(site).fields.items()}
    assert fields == {"kernel-config": {"backend": ("auto", "own")}}


def test_an_image_that_can_not_answer_gives_no_table(site: Path) -> None:
    (site / "vllm/entrypoints/openai/cli_args.py").write_text("raise RuntimeError('no GPU')")
    assert query(site) == EMPTY
    (site / "bin/vllm").write_bytes(b"\x7fELF\0\1\2")
    assert query(site) == EMPTY
    (site / "bin/vllm").unlink()
    assert query(site) == EMPTY


def test_an_unknown_part_of_a_build_is_left_out(site: Path) -> None:
    (site / "vllm/envs.py").unlink()
    assert query(site).variables == ()


def test_an_answer_is_read_between_other_lines() -> None:
    assert parse_answer(f"noise\n{packed(ONE_FLAG)}\nnoise", IMAGE).flags


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        ONE_FLAG | {"flags": []},
        ONE_FLAG | {"flags": [{"name": "max-model-len", "kind": "rubbish"}]},
        ONE_FLAG | {"more": 1},
        ONE_FLAG | {"version": "\x1b[31m"},
        ONE_FLAG | {"variables": ["A\nB"]},
        ONE_FLAG | {"version": "\x7f"},
        ONE_FLAG | {"version": "v" * 201},
        ONE_FLAG | {"variables": [f"V{number}" for number in range(MOST_NAMES + 1)]},
        ONE_FLAG | {"fields": {"x": [{"name": f"f{number}", "takes": "int"} for number in range(MOST_NAMES + 1)]}},
        ONE_FLAG | {"variables": ["v" * 150] * 1999},
    ],
    ids=lambda content: str(content)[-30:],
)
def test_a_wrong_answer_is_none(content: object) -> None:
    assert parse_answer(packed(content), IMAGE) == EMPTY


@pytest.mark.parametrize("log", ["", "sparkd-vllm-parser:", "sparkd-vllm-parser:rubbish", packed(ONE_FLAG)[:-9]])
def test_an_answer_that_was_cut_off_is_none(log: str) -> None:
    assert parse_answer(log, IMAGE) == EMPTY


def test_what_vllm_writes_at_its_import_stays_out_of_the_log(site: Path) -> None:
    (site / "vllm/__init__.py").write_text("import sys\nsys.stderr.write('noise\\n' * 500)\n")
    log = query_log(site)
    assert "noise" not in log
    assert parse_answer(log, IMAGE).flags
