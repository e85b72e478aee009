"""Real vLLM's own parser of `vllm serve`, run in a copy of the engine's image, and the table made of it.

`make flags` regenerates the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cache, engine_image
from .command import run
from .tree import Tree

PROGRAM = Path(__file__).with_name("programs") / "vllm_parser.py"
TABLE = Path("src/sparkd/vllm/flag_table.py")
ENV = {"TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
HEAD = '''\
"""Flags of `vllm serve` {version}, as its own parser has them. Made by `make flags`: do not edit."""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from sparkd.vllm.flag import Flag

VERSION = "{version}"
FLAGS = (
'''


@dataclass(frozen=True)
class Answers:
    table: str
    """Text of the module that has the flags."""
    refusals: list[str]
    """What it says to each line; empty where it takes one."""


def query_parser(lines: Sequence[Sequence[str]] = ()) -> Answers:
    """All lines of words behind `vllm`, in one process."""
    archive = engine_image.archive()
    # It stays unpacked: to remove it takes longer than to use it.
    root = cache.artefact("parser", engine_image.key(), "", lambda folder: _unpack(archive, folder))
    with cache.lock("parser"):
        (root / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
        (root / "lines.json").write_text(json.dumps([[*line] for line in lines]))
        Tree(root).run("python3", f"/{PROGRAM.name}", "/lines.json", "/answers.json", env=ENV)
        found = json.loads((root / "answers.json").read_text())
    return Answers(_table(found["version"].partition("+")[0], found["flags"]), found["refusals"])


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    run("tar", "-C", folder, "-I", "zstd -dq", "-xf", archive)


def write_table() -> None:
    TABLE.write_text(query_parser().table)


def _table(version: str, flags: list[dict[str, object]]) -> str:
    rows = sorted(flags, key=lambda row: str(row["name"]))
    return HEAD.format(version=version) + "".join(f"    {_row(row)},\n" for row in rows) + ")\n"


def _row(row: dict[str, object]) -> str:
    words = [_said(row.pop("name")), _said(row.pop("kind"))]
    words += [f"{key}={_said(value)}" for key, value in row.items() if value and (key, value) != ("count", "one")]
    return f"Flag({', '.join(words)})"


def _said(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(_said(one) for one in value)}{',' * (len(value) == 1)})"
    return json.dumps(value) if isinstance(value, str) else repr(value)
