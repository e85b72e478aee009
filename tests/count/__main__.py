"""Figures of src/sparkd: python -m tests.count [--json] [--base REV].

With --base each figure is followed by its difference to that commit, and lists mark what is new (+) and gone (-).
--json also writes build/count.json. The definitions are in the docstrings of lines.py, shape.py and source.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.count.lines import Lines, count_code_tokens, count_docstring_words, count_lines
from tests.count.shape import (
    MAX_BRANCHES,
    Function,
    list_bare_numbers,
    list_calls,
    list_openings,
    list_rooms,
    list_waits,
    measure_functions,
    percentile,
)
from tests.count.source import Module, import_closure, read_modules

ROOT = Path(__file__).parents[2]
SOURCE = "src/sparkd"
RUN = ("sparkd.tools.cli.run", "sparkd.cli.run")
"""Where `sparkd run` begins, now and in earlier commits. At d40baf0 its closure has 182 modules and 27,606 lines.

Where there is no such module, it has none.
"""
MAX_LINES, MIN_LINES = 320, 40
"""Of a module."""
ALL = "all"
"""The row that is the sum of all packages."""
JSON_FILE = ROOT / "build" / "count.json"


class Report(NamedTuple):
    packages: dict[str, Lines]
    figures: dict[str, int]
    places: dict[str, list[str]]
    """Each list's length is a figure, too."""


def count(top: Path, moved: Mapping[str, str] = MappingProxyType({})) -> Report:
    """Figures of the package in the folder `top`; a module whose path is in `moved` counts at its new one.

    Raises SyntaxError.
    """
    modules = tuple(module._replace(path=moved.get(module.path, module.path)) for module in read_modules(top))
    functions = measure_functions(modules)
    places = list_places(modules, functions)
    figures = {**count_figures(modules, functions), **{title: len(listed) for title, listed in places.items()}}
    return Report(count_packages(modules), figures, places)


def count_packages(modules: tuple[Module, ...]) -> dict[str, Lines]:
    """With a row for each layer, and one for all."""
    packages: dict[str, Lines] = {}
    for module in modules:
        lines = count_lines(module)
        layer = [f"{module.layer} ({ALL})"] if module.layer else []
        for name in (module.package or "(top)", *layer, ALL):
            packages[name] = packages.get(name, Lines()).plus(lines)
    return packages


def count_figures(modules: tuple[Module, ...], functions: tuple[Function, ...]) -> dict[str, int]:
    closure = import_closure(modules, *RUN)
    sizes = [function.lines for function in functions]
    rooms = list_rooms(modules)
    return {
        "modules": len(modules),
        "docstring words": sum(map(count_docstring_words, modules)),
        "code tokens": sum(map(count_code_tokens, modules)),
        "import closure of `sparkd run`, modules": len(closure),
        "import closure of `sparkd run`, lines": sum(module.lines for module in closure),
        "functions": len(functions),
        **{f"function lines, p{percent}": percentile(sizes, percent) for percent in (50, 90, 99, 100)},
        "most branches of a function": max((function.branches for function in functions), default=0),
        **{f"{room.subject}: packages": room.packages for room in rooms},
        **{f"{room.subject}: modules": room.modules for room in rooms},
    }


def list_places(modules: tuple[Module, ...], functions: tuple[Function, ...]) -> dict[str, list[str]]:
    named = [module for module in modules if not module.is_init]
    ranked = sorted(functions, key=lambda function: (-function.branches, function.place))
    return {
        f"modules over {MAX_LINES} lines": [_sized(module) for module in named if module.lines > MAX_LINES],
        f"modules under {MIN_LINES} lines": [_sized(module) for module in named if module.lines < MIN_LINES],
        "verbs of waiting": list_waits(modules),
        "state files": list_calls(modules, "StateFile"),
        "databases": list_calls(modules, "sqlite3.connect"),
        "locks": list_calls(modules, "flock", "lockf"),
        f"functions over {MAX_BRANCHES} branches": [
            _branched(function) for function in ranked if function.branches > MAX_BRANCHES
        ],
        "numbers used once without a docstring or comment": list_bare_numbers(modules),
        "docstrings that begin with Of, For or As": list_openings(modules, "Of", "For", "As"),
    }


def count_commit(revision: str) -> Report:
    """Figures of a commit, unpacked into a temporary folder. Raises CalledProcessError for an unknown one."""
    command = ["git", "archive", "--format=tar", revision, SOURCE]
    archive = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
        return count(Path(folder, SOURCE), find_moved(revision))


def find_moved(revision: str, root: Path = ROOT) -> dict[str, str]:
    """Paths of a commit's modules that have moved since, each with the path in the working tree, as git finds them."""
    command = ["git", "diff", "--find-renames=30%", "--diff-filter=R", "--name-status", revision, "--", SOURCE]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    moves = (line.split("\t") for line in output.splitlines())
    return {old.removeprefix(f"{SOURCE}/"): new.removeprefix(f"{SOURCE}/") for _, old, new in moves}


def render(now: Report, base: Report) -> str:
    """Tables of `now`; differences to `base` stand behind the figures, and are empty where both are the same."""
    rows: list[tuple[str, ...]] = [("package", *Lines._fields)]
    for name in (*sorted({*now.packages, *base.packages} - {ALL}), ALL):
        pair = (report.packages.get(name, Lines()) for report in (now, base))
        rows.append((name, *map(_cell, *pair)))
    figures: list[tuple[str, ...]] = [
        (name, _cell(now.figures.get(name, 0), base.figures.get(name, 0)))
        for name in dict.fromkeys((*now.figures, *base.figures))
    ]
    lists = []
    for title in dict.fromkeys((*now.places, *base.places)):
        places, earlier = now.places.get(title, []), base.places.get(title, [])
        new, gone = Counter(places) - Counter(earlier), Counter(earlier) - Counter(places)
        marked = [f"  {'+' if place in new else ' '} {place}" for place in places]
        lists.append("\n".join((f"{title}:", *marked, *(f"  - {place}" for place in gone.elements()))))
    return "\n\n".join((_align(rows), _align(figures), *lists))


def _cell(now: int, base: int) -> str:
    return f"{now:,}" if now == base else f"{now:,} ({now - base:+,})"


def _align(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            (row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)))
        )
        for row in rows
    )


def _sized(module: Module) -> str:
    return f"{module.path} {module.lines}"


def _branched(function: Function) -> str:
    return f"{function.branches} {function.place}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.count")
    parser.add_argument("--base", metavar="REV", help="compare with this commit")
    parser.add_argument("--json", action="store_true", help="also write build/count.json")
    options = parser.parse_args(argv)
    now = count(ROOT / SOURCE)
    base = count_commit(options.base) if options.base else now
    print(render(now, base))
    if options.json:
        JSON_FILE.parent.mkdir(exist_ok=True)
        named = {"now": now, **({options.base: base} if options.base else {})}
        documents = {
            name: {**report._asdict(), "packages": {key: lines._asdict() for key, lines in report.packages.items()}}
            for name, report in named.items()
        }
        JSON_FILE.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
