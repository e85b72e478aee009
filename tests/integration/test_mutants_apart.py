"""What `make mutants` does with a mutant, in the kernel's namespaces: a tree of one module, and its tests."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.count.source import Module
from tests.mutants.draw import find_mutants
from tests.mutants.workshop import KILLED, SURVIVED, UNCLEAR, Workshop

MODULE = "def is_short(n: int) -> bool:\n    return n < 5 and n > -9\n"
TESTS = '''
import os, sys, time
from pathlib import Path

sys.path.insert(0, "src")
from sparkd.x import is_short

def test_rule():
    assert is_short(4) and is_short(0) and not is_short(5)

def test_apart():
    """No process of others, and nothing to write but the tree and temporary files."""
    assert len([name for name in os.listdir("/proc") if name.isdigit()]) < 5
    assert os.getpid() > 1
    Path("here").touch()
    for folder in ("/", "/dev", "/sys/fs", ".venv", {outside!r}):
        try:
            Path(folder, "mutant-was-here").touch()
        except OSError:
            continue
        raise AssertionError(folder)
'''
LOOP = "while is_short(5): time.sleep(0.01)\n"
BROKEN = "\n\ndef test_broken():\n    assert not is_short(-9) and False\n"


@pytest.fixture
def workshop(tmp_path: Path, request: pytest.FixtureRequest) -> Workshop:
    root = tmp_path / "root"
    files = {
        "src/sparkd/__init__.py": "",
        "src/sparkd/x.py": MODULE,
        "tests/test_x.py": TESTS.format(outside=str(tmp_path)) + getattr(request, "param", ""),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for command in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(command, cwd=root, check=True)
    (root / ".venv").symlink_to(sys.prefix)
    return Workshop(root, tmp_path / "scratch")


def judge(workshop: Workshop, change: str) -> str:
    module = Module("sparkd.x", "x.py", MODULE, ast.parse(MODULE))
    (mutant,) = (mutant for mutant in find_mutants(module) if f"{mutant.before} -> {mutant.after}" == change)
    verdict, _ = workshop.judge(mutant, ("tests/test_x.py",))
    return verdict


def test_without_a_mutant_all_pass_and_nothing_outside_is_written(workshop: Workshop, tmp_path: Path) -> None:
    assert workshop.run(("tests/test_x.py",), 30) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "scratch"]
    assert not (tmp_path / "root" / "here").exists()


def test_a_mutant_is_killed_where_a_test_fails_with_it_alone(workshop: Workshop) -> None:
    assert judge(workshop, "n < 5 -> (n <= 5)") == KILLED
    assert judge(workshop, "n > -9 -> (n >= -9)") == SURVIVED
    assert judge(workshop, "n < 5 -> (n >= 5)") == KILLED


@pytest.mark.parametrize("workshop", [BROKEN], indirect=True, ids=["broken"])
def test_a_test_that_fails_without_the_mutant_kills_none(workshop: Workshop) -> None:
    assert judge(workshop, "n > -9 -> (n >= -9)") == UNCLEAR


@pytest.mark.parametrize(
    "workshop", [f"\n\ndef test_end():\n    {LOOP}", f"\n\n{LOOP}"], indirect=True, ids=["test", "import"]
)
def test_a_mutant_that_does_not_end_fails_in_a_test_and_before(workshop: Workshop) -> None:
    (workshop.tree / "src/sparkd/x.py").write_text("def is_short(n):\n    return n < 5 or n == 5\n")
    assert workshop.run(("tests/test_x.py::test_end",), 3) == "tests/test_x.py::test_end"
