"""Tables of vLLM's releases, each from its own parser: its sources, without any compiled part, on the bed's engine.

`make flags` writes them. vLLM 0.32 gives the same table from its sources as from its wheel (tests/bed/test_flags.py).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from msgspec import convert, to_builtins

from sparkd.base.vllm.flag import FILE, Field, Flag, FlagTable
from sparkd.base.vllm.own_table import parse_answer
from sparkd.base.vllm.releases import FILE as RELEASES_FILE

from . import cache, engine_image, engine_parser
from .command import BedError, run
from .tree import Tree

DATA = Path("src/sparkd/data")
VERSIONS = (
    "0.33.0", "0.32.0", "0.31.0", "0.30.0", "0.29.0", "0.28.0", "0.27.1", "0.26.0", "0.25.1", "0.24.0", "0.23.0",
    "0.22.1", "0.21.0", "0.20.2", "0.19.1", "0.18.1", "0.17.1", "0.16.0", "0.15.1", "0.14.1", "0.13.0", "0.12.0",
)  # fmt: skip
"""The last patch of each minor release of a year; its flags equal those of the first patch that has sources."""
ONLY_WHEELS = ("0.15.1",)
OLDER_NEEDS = ("gguf", "diskcache")
"""What releases up to 0.23 import, and the bed's engine lacks."""


def write_tables() -> None:
    write([query(version) for version in VERSIONS])


def query(version: str) -> FlagTable:
    root = engine_parser.unpacked()
    sources = cache.artefact("release", cache.recipe_key(Path(__file__), version), "", partial(_fetch, version))
    with cache.lock("parser"):
        folder = root / "release"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sources, folder, copy_function=os.link)
        (root / "parser_program.py").write_bytes(engine_parser.QUERY_PROGRAM.read_bytes())
        site = f"/{engine_image.SITE}"
        env = engine_parser.ENV | {"PYTHONPATH": f"/release:{site}:/release/needs", "PYTHONDONTWRITEBYTECODE": "1"}
        table = parse_answer(Tree(root).run("python3", "/parser_program.py", env=env), "")
        shutil.rmtree(folder)
    if not table.flags:
        raise BedError(f"vLLM {version} gave no table")
    return convert({**to_builtins(table), "version": version}, FlagTable)


def _fetch(version: str, folder: Path) -> None:
    """The Python of a release. A source archive is unpacked by pip, which then fails to build it, and leaves it."""
    with cache.scratch("release") as scratch:
        pip = (sys.executable, "-m", "pip")
        download = (*pip, "download", "--quiet", "--no-deps", "--dest", str(scratch))
        env = {**os.environ, "TMPDIR": str(scratch)}
        run(*pip, "install", "--quiet", "--no-deps", "--target", str(folder / "needs"), *OLDER_NEEDS, env=env)
        if version in ONLY_WHEELS:
            run(*download, f"vllm=={version}", env=env)
            with zipfile.ZipFile(_find_one(scratch, "vllm-*.whl")) as wheel:
                names = [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".py")]
                wheel.extractall(folder, names)
        else:
            unpack = ("--no-clean", "--no-build-isolation", "--no-binary", "vllm")
            run(*download, *unpack, f"vllm=={version}", env=env, check=False)
            shutil.move(_find_one(scratch, "**/vllm_*/vllm"), folder / "vllm")


def _find_one(folder: Path, pattern: str) -> Path:
    path = next(folder.glob(pattern), None)
    if path is None:
        raise BedError(f"pip left no {pattern} in {folder}")
    return path


def write(tables: Sequence[FlagTable]) -> None:
    """The newest table in full; each older one as its difference from the next newer."""
    (DATA / FILE).write_text(engine_parser.format_table(tables[0]))
    steps = (_step(later, table) for later, table in pairwise(tables))
    (DATA / RELEASES_FILE).write_text("[\n" + ",\n".join(steps) + "\n]\n")


def _step(later: FlagTable, table: FlagTable) -> str:
    """A line for each flag and each flag's fields."""
    flags = [flag for flag in table.flags if flag not in later.flags]
    fields = {
        name: rows
        for name in table.fields
        if (rows := [field for field in table.fields[name] if field not in later.fields.get(name, ())])
    }
    gone = sorted((_names(later) | {*later.variables}) - _names(table) - {*table.variables})
    came = sorted({*table.variables} - {*later.variables})
    return (
        f'{{"version": {json.dumps(table.version)},\n "flags": [\n'
        + ",\n".join(f"  {_row(flag)}" for flag in flags) + '\n ],\n "fields": {\n'
        + ",\n".join(f"  {json.dumps(name)}: [{', '.join(map(_row, rows))}]" for name, rows in sorted(fields.items()))
        + f'\n }},\n "variables": {json.dumps(came)},\n "gone": {json.dumps(gone)}}}'
    )  # fmt: skip


def _names(table: FlagTable) -> set[str]:
    return {flag.name for flag in table.flags} | {
        f"{name}.{one.name}" for name, rows in table.fields.items() for one in rows
    }


def _row(row: Flag | Field) -> str:
    return json.dumps(to_builtins(row))
