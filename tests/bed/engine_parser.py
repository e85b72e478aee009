"""Real vLLM's own parser of `vllm serve`, run in a copy of the engine's image, and the table made of it.

`make flags` regenerates the table.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cache, engine_image
from .command import run
from .tree import Tree

PROGRAM = Path(__file__).with_name("programs") / "vllm_parser.py"
TABLE = Path("src/sparkd/vllm/flag_table.py")
FIELDS = Path("src/sparkd/vllm/field_table.py")
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
FIELDS_HEAD = '''\
"""Fields in the JSON of flags, as the classes of vLLM {version} read them. Made by `make flags`: do not edit."""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from collections.abc import Mapping

from sparkd.vllm.flag import Field

FIELDS: Mapping[str, tuple[Field, ...]] = {{
'''


@dataclass(frozen=True)
class Answers:
    tables: dict[Path, str]
    """Text of each module that is made of it."""
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
    version = found["version"].partition("+")[0]
    tables = {TABLE: _table(version, found["flags"]), FIELDS: _field_table(version, found["configs"])}
    return Answers(tables, found["refusals"])


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    run("tar", "-C", folder, "-I", "zstd -dq", "-xf", archive)


def write_table() -> None:
    for file, text in query_parser().tables.items():
        file.write_text(text)


def _table(version: str, flags: list[dict[str, object]]) -> str:
    rows = sorted(flags, key=lambda row: str(row["name"]))
    return HEAD.format(version=version) + "".join(f"    {_row(row)},\n" for row in rows) + ")\n"


def _field_table(version: str, configs: dict[str, list[dict[str, object]]]) -> str:
    """Several fields on a line: there are hundreds."""
    text = FIELDS_HEAD.format(version=version)
    for flag, fields in sorted(configs.items()):
        rows = " ".join(f"{_row(row, 'Field', 'takes')},".replace(" ", "\0") for row in fields)
        lines = textwrap.wrap(rows, 160, break_long_words=False, break_on_hyphens=False)
        text += f"    {_said(flag)}: (\n" + "".join(f"        {line}\n" for line in lines) + "    ),\n"
    return text.replace("\0", " ") + "}\n"


def _row(row: dict[str, object], kind: str = "Flag", second: str = "kind") -> str:
    words = [_said(row.pop("name")), _said(row.pop(second))]
    words += [f"{key}={_said(value)}" for key, value in row.items() if value and (key, value) != ("count", "one")]
    return f"{kind}({', '.join(words)})"


def _said(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(_said(one) for one in value)}{',' * (len(value) == 1)})"
    return json.dumps(value) if isinstance(value, str) else repr(value)
