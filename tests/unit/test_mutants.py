"""What `make mutants` changes, what it never changes, and which tests it runs."""

import ast
from pathlib import Path

import pytest
from tests.count.source import Module
from tests.mutants.draw import draw, find_mutants
from tests.mutants.workshop import choose_tests


def module(text: str, path: str = "lib/x.py") -> Module:
    return Module("sparkd.lib.x", path, text, ast.parse(text))


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("a < b", {"a < b -> (a <= b)", "a < b -> (a >= b)"}),
        ("a is b == c", {"a is b == c -> (a is not b == c)", "a is b == c -> (a is b != c)"}),
        ("a in b", {"a in b -> (a not in b)"}),
        ("a and\\\n b", {"a and\\ b -> (a or b)"}),
        ("not a", {"not a -> (a)"}),
        ("b = 'ä', 1.5", {"1.5 -> (2.5)", "1.5 -> (0.5)"}),
        ("if a.b: c = True", {"a.b -> (not a.b)"}),
        ("a(b)", {"a(b) -> pass"}),
        ("a = b(c)", set()),
        ("def f(): return a", {"return a -> return None"}),
        ("def f() -> bool: return a", {"return a -> return True", "return a -> return False"}),
        ("def f() -> bool: return True", {"return True -> return False"}),
        ("def f(a, b=True, *, c='d'): pass", {"True -> False", "'d' -> \"\""}),
        ("class A:\n a: str = ''\n b = ''", {"'' -> \"mutant\""}),
        ("def f(a: Literal[1]) -> Literal[2]: pass", set()),
        ("@a(1)\nclass A: pass", set()),
        ("a = f'{b:>{2}}'", set()),
        ("match a:\n case 1: b = None", set()),
    ],
)
def test_changes(text: str, changes: set[str]) -> None:
    assert {f"{' '.join(mutant.before.split())} -> {mutant.after}" for mutant in find_mutants(module(text))} == changes


def test_a_mutant_is_the_source_with_one_change() -> None:
    source = module("é = 'ü'\ndef f():\n    return 'ö', g(1)  # ä\n")
    (mutant,) = (mutant for mutant in find_mutants(source) if mutant.after == "(2)")
    assert mutant.apply(source.text.encode()).decode() == "é = 'ü'\ndef f():\n    return 'ö', g((2))  # ä\n"
    assert str(mutant) == "src/sparkd/lib/x.py:3 1 -> (2)"


@pytest.mark.parametrize(
    "call", ["os.kill(1, 2)", "signal.pidfd_send_signal(1, 2)", "path.unlink()", "shutil.rmtree(a)", "mount(1)"]
)
def test_what_ends_processes_or_removes_files_is_not_changed(call: str) -> None:
    harmful = f"def f(a=1):\n    def g():\n        if a > 1: {call}\n    return a < 2\n"
    assert list(find_mutants(module(harmful))) == []
    assert len(list(find_mutants(module(harmful.replace(call, "pass"))))) > 5
    assert draw([module("a = 1", "agent/actions/processes.py")], "agent/actions", 1, 9) == []


def test_a_seed_draws_the_same_mutants_where_their_code_is_the_same() -> None:
    functions = "\n".join(f"def f{number}(): return a{number} < {number}" for number in range(30))
    drawn = draw([module(functions)], "lib", 7, 10)
    assert len({(mutant.scope, mutant.after) for mutant in drawn}) == 10
    moved = draw([module(f"import os\n\n{functions}\n")], "lib", 7, 10)
    assert [mutant[3:6] for mutant in moved] == [mutant[3:6] for mutant in drawn]
    assert [mutant.line for mutant in moved] == [mutant.line + 2 for mutant in drawn]
    assert draw([module(functions)], "lib", 8, 10) != drawn
    assert draw([module(functions)], "cli", 7, 10) == []


def test_tests_that_import_the_module_run_first_then_those_of_its_package(tmp_path: Path) -> None:
    for name, text in {
        "agent/test_a.py": "def test_a():\n    from sparkd.lib import x\n",
        "agent/test_other.py": "import sparkd.lib.xy\n",
        "lib/deep/test_c.py": "import sparkd.lib.x\n",
        "lib/test_b.py": "",
        "lib/helper.py": "import sparkd.lib.x\n",
    }.items():
        path = tmp_path / "tests/unit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = choose_tests(tmp_path, "sparkd.lib.x", "base/lib")
    assert [name.removeprefix("tests/unit/") for name in names] == [
        *("lib/deep/test_c.py", "agent/test_a.py", "lib/test_b.py")
    ]
