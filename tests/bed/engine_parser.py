"""Real vLLM's own parser of `vllm serve`, run in a copy of the engine's image, and the table made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import convert, to_builtins

from sparkd.base.vllm.flag import Field, Flag, FlagTable

from . import cache, engine_image
from .command import run
from .tree import Tree

PROGRAM = Path(__file__).with_name("programs") / "vllm_refusals.py"
MODELS = PROGRAM.with_name("vllm_models.py")
QUERY_PROGRAM = Path("src/sparkd/base/vllm/parser_program.py")
ENV = {"TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

Case = tuple[Mapping[str, object], str | None, int]
"""A config.json, --quantization and --tensor-parallel-size."""


@dataclass(frozen=True)
class Answers:
    table: str
    """As a file of JSON."""
    refusals: list[str]
    """What it says to each line; empty where it takes one."""


def query_parser(lines: Sequence[Sequence[str]] = ()) -> Answers:
    """All lines of words behind `vllm`, in one process."""
    root = unpacked()
    with cache.lock("parser"):
        for program in (PROGRAM, QUERY_PROGRAM):
            (root / program.name).write_bytes(program.read_bytes())
        (root / "lines.json").write_text(json.dumps([[*line] for line in lines]))
        Tree(root).run("python3", f"/{PROGRAM.name}", "/lines.json", "/answers.json", env=ENV)
        found = json.loads((root / "answers.json").read_text())
    rows = {**found["table"], "version": found["table"]["version"].partition("+")[0]}
    return Answers(format_table(convert(rows, FlagTable)), found["refusals"])


def query_models(cases: Sequence[Case]) -> list[str]:
    """What vLLM says to each; empty where it takes it."""
    root = unpacked()
    with cache.lock("parser"):
        (root / MODELS.name).write_bytes(MODELS.read_bytes())
        (root / "cases.json").write_text(json.dumps(cases))
        Tree(root).run("python3", f"/{MODELS.name}", "/cases.json", "/answers.json", env=ENV)
        answers: list[str] = json.loads((root / "answers.json").read_text())
        return answers


def unpacked() -> Path:
    """The engine's root file system. It stays unpacked: to remove it takes longer than to use it."""
    archive = engine_image.archive()
    return cache.artefact("parser", engine_image.key(), "", lambda folder: _unpack(archive, folder))


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    run("tar", "-C", folder, "-I", "zstd -dq", "-xf", archive)


def format_table(table: FlagTable) -> str:
    """JSON with a line for each flag and each field, so that a difference shows which ones changed."""
    flags = ",\n".join(f"    {_row(flag)}" for flag in table.flags)
    lists = (
        f"    {json.dumps(flag)}: [\n" + ",\n".join(f"      {_row(field)}" for field in fields) + "\n    ]"
        for flag, fields in sorted(table.fields.items())
    )
    fields = ",\n".join(lists)
    version = json.dumps(table.version)
    variables = ",\n".join(f"    {json.dumps(name)}" for name in table.variables)
    return (
        f'{{\n  "version": {version},\n  "flags": [\n{flags}\n  ],\n  "fields": {{\n{fields}\n  }},\n'
        f'  "variables": [\n{variables}\n  ]\n}}\n'
    )


def _row(row: Flag | Field) -> str:
    """What is not the default."""
    return json.dumps(to_builtins(row))
