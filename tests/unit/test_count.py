"""The definitions of `make count`, on a package of a few lines."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from tests.count.__main__ import ROOT, SOURCE, Report, count, count_packages, find_moved, list_places, render
from tests.count.__main__ import RUN as RUN_ENTRIES
from tests.count.lines import Lines, count_code_tokens, count_docstring_words, count_lines
from tests.count.shape import count_branches, list_bare_numbers, measure_functions, percentile
from tests.count.source import Module, functions, import_closure, read_modules

RUN = '''"""Start the agent."""
from typing import TYPE_CHECKING

import app.lib.text

if TYPE_CHECKING:
    from app.plan import Plan

# What stops it.
SIGNALS = frozenset({
    "TERM",

    "INT",
})
LIMIT = 3
"""In seconds."""

def start():
    from app.agent import run  # late

    with open(LOCK) as file:
        fcntl.flock(file, 2)
'''
TREE = {
    "__init__.py": "",
    "cli/__init__.py": "",
    "cli/run.py": RUN,
    "lib/__init__.py": "import app.lib.base",
    "lib/text.py": "",
    "lib/base.py": "FILE = StateFile(Base, 'base.json')\nOTHER = StateFile(NAME)\nMyStateFile('no')\n",
    "agent/run.py": "import os\n",
    "agent/daemon/deps.py": "class Deps:\n    def wait(self): ...\n    def other(self): ...\n",
    "agent/history.py": "",
    "state/launch_history.py": "def read():\n    return sqlite3.connect(PATH), other.connect(PATH)\n",
    "host/docker/__init__.py": "",
    "host/docker/client.py": "",
    "plan.py": "",
}
KEPT = (
    *("modules over 320 lines", "modules under 40 lines", "functions over 12 branches"),
    "docstrings that begin with Of, For or As",
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "app"


def module(text: str) -> Module:
    return Module("app.x", "x.py", text, ast.parse(text))


def branches(body: str) -> int:
    ((_, function),) = functions(ast.parse(f"def f():\n {body}"))
    return count_branches(function)


def test_each_line_has_one_kind() -> None:
    lines = count_lines(module(RUN))
    assert lines == Lines(total=22, code=5, blank=6, imports=4, docstrings=2, comments=1, data=4)
    assert sum(lines[1:]) == lines.total


@pytest.mark.parametrize(
    ("statement", "data"),
    [
        ("A = (1, 2)", 1),
        ("A: dict[str, int] = {}", 1),
        ("A = tuple([1])", 1),
        ("A = types.MappingProxyType({1: 2})", 1),
        ("A = B | {1}", 1),
        ("A = f((1, 2))", 0),
        ("A = 1", 0),
        ("def f():\n    a = (1, 2)", 0),
    ],
)
def test_data_are_collections_of_modules(statement: str, data: int) -> None:
    assert count_lines(module(statement)).data == data


def test_docstrings_are_no_tokens_but_words() -> None:
    assert count_docstring_words(module(RUN)) == 5
    text = 'def f():  # not\n    """Not counted."""\n    return f"{a} {b}", "c"\n'
    assert count_code_tokens(module(text)) == len(["def", "f", "(", ")", ":", "return", "f-string", ",", "c"])


def test_the_closure_has_imports_of_functions_and_packages_above_but_none_for_types(top: Path) -> None:
    closure = import_closure(read_modules(top), "app.cli.run")
    assert [part.path for part in closure] == [
        *("__init__.py", "agent/run.py", "cli/__init__.py", "cli/run.py"),
        *("lib/__init__.py", "lib/base.py", "lib/text.py"),
    ]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("if a: pass\n elif b: pass\n else: pass", 2),
        ("for a in b: pass\n else: pass", 1),
        ("while a: pass", 1),
        ("return a and b and c or d", 3),
        ("return a if b else c", 1),
        ("return [a for a in b if c if d]", 2),
        ("try: pass\n except A: pass\n except B: pass\n finally: pass", 2),
        ("match a:\n  case 1: pass\n  case _: pass", 2),
        ("assert a", 1),
        ("with a: return not b", 0),
        ("return lambda: a or b", 1),
    ],
)
def test_branches(body: str, count: int) -> None:
    assert branches(body) == count


def test_what_is_nested_counts_for_both_functions() -> None:
    text = "class A:\n    @wraps\n    def f(self):\n        def g():\n            assert a\n        return g\n"
    assert [tuple(function) for function in measure_functions([module(text)])] == [
        ("x.py:A.f", 4, 1),
        ("x.py:A.f.g", 2, 1),
    ]


def test_a_percentile_is_a_size_that_occurs() -> None:
    assert [percentile([9, 1, 5, 3], percent) for percent in (50, 90, 100)] == [3, 9, 9]
    assert percentile([], 50) == 0


def test_places_have_no_line_numbers(top: Path) -> None:
    report = count(top)
    assert report.places["verbs of waiting"] == ["agent/daemon/deps.py:Deps.wait"]
    assert report.places["state files"] == ["lib/base.py base.json", "lib/base.py"]
    assert report.places["databases"] == ["state/launch_history.py:read"]
    assert report.places["locks"] == ["cli/run.py:start"]
    assert report.places["modules under 40 lines"][:2] == ["agent/daemon/deps.py 3", "agent/history.py 0"]
    assert report.figures["locks"] == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A = 3\nprint(A)", ["A"]),
        ("A, B = 3, 4 << 10\nprint(A, B, B)", ["A"]),
        ("A = 3\nprint(A, A)", []),
        ("# why\nA = 3", []),
        ("A = 3  # why", []),
        ("A = 3  # why\nB = 4", ["B"]),
        ('A = 3\n"""In seconds."""', []),
        ("A = 'x1'\nB = re.compile('1')", []),
    ],
)
def test_a_number_used_once_is_bare_without_a_reason(text: str, names: list[str]) -> None:
    assert list_bare_numbers((module(text),)) == [f"x.py {name}" for name in names]


def test_uses_of_a_number_in_other_modules_count() -> None:
    text = "from app import x\nfrom app.x import A\nprint(A, x.B)"
    other = Module("app.y", "y.py", text, ast.parse(text))
    assert list_bare_numbers((module("A, B, C = 1, 2, 3\nprint(A, B, C)"), other)) == ["x.py C"]


def test_the_source_has_no_place_that_reads_badly() -> None:
    modules = read_modules(ROOT / SOURCE)
    places = list_places(modules, measure_functions(modules))
    assert [(title, place) for title in KEPT for place in places[title]] == []


def test_the_source_grows_by_decision_alone() -> None:
    """docs/adr/0077: take as much away elsewhere, or raise a bound in a commit of its own that says what for."""
    modules = read_modules(ROOT / SOURCE)
    lines = count_packages(modules)["all"]
    assert lines.total - lines.data <= 55_850
    assert len(import_closure(modules, *RUN_ENTRIES)) <= 300


def test_the_rooms_of_a_subject_are_named_for_it(top: Path) -> None:
    figures = count(top).figures
    assert (figures["history: packages"], figures["history: modules"]) == (2, 2)
    assert (figures["docker: packages"], figures["docker: modules"]) == (1, 1)
    assert figures["gpu: modules"] == 0


def test_a_layer_has_packages_and_a_row_of_their_sum(top: Path) -> None:
    packages = count(top).packages
    assert (packages["agent/daemon"].total, packages["agent"].total, packages["agent (all)"].total) == (3, 1, 4)
    assert (packages["cli"].total, packages["(top)"].total, packages["all"].total) == (22, 0, 32)


def test_what_has_moved_since_a_commit_counts_at_its_new_place(tmp_path: Path, top: Path) -> None:
    old = tmp_path / "src/sparkd/lib/text.py"
    new = tmp_path / "src/sparkd/base/lib/text.py"
    for folder in (old.parent, new.parent):
        folder.mkdir(parents=True)
    old.write_text("A = 1\n" * 9)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    for words in (("init", "-q"), ("add", "src"), ("commit", "-qm", "a"), ("mv", str(old), str(new))):
        subprocess.run((*git, *words), check=True)
    assert find_moved("HEAD", tmp_path) == {"lib/text.py": "base/lib/text.py"}
    packages = count(top, {"lib/base.py": "base/lib/base.py"}).packages
    assert (packages["base/lib"].total, packages["base (all)"].total, packages["lib"].total) == (3, 3, 1)


def test_a_comparison_shows_differences_alone() -> None:
    base = Report({"lib": Lines(total=7), "all": Lines(total=7)}, {"modules": 3, "functions": 9}, {"locks": ["a", "b"]})
    now = Report({"all": Lines(total=1_005)}, {"modules": 3, "functions": 8}, {"locks": ["b", "c"]})
    tables = render(now, base).splitlines()
    assert tables[1].split()[:3] == ["lib", "0", "(-7)"]
    assert tables[2].split()[:4] == ["all", "1,005", "(+998)", "0"]
    assert [line.split() for line in tables[4:6]] == [["modules", "3"], ["functions", "8", "(-1)"]]
    assert tables[7:] == ["locks:", "    b", "  + c", "  - a"]
