"""What a recipe asserts of its image runs in a real bash, and its log says what the image lacks."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkd.base.plan.image_asserts import SHOWN_COMMAND, find_fault, find_unbuilt, render_asserts
from sparkd.base.recipes.image import Lines


def run_asserts(asserts: Sequence[str | Lines]) -> subprocess.CompletedProcess[str]:
    return run_program(render_asserts(asserts))


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["/bin/bash", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["true", "echo out; test a = a"])
def test_an_assertion_that_holds_says_nothing(command: str) -> None:
    done = run_asserts(["true", command])
    assert done.returncode == 0
    assert done.stdout == ""
    assert find_fault(done.stderr) == "the check printed nothing"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("grep -q 'no' /dev/null", "grep -q 'no' /dev/null"),
        ("-x", "bash: line 1: -x: command not found (-x)"),
        ("echo 'No module named x' >&2; false", "No module named x (echo 'No module named x' >&2; false)"),
    ],
)
def test_an_assertion_that_fails_says_what_it_found(command: str, fault: str) -> None:
    done = run_asserts(["true", command])
    assert done.returncode == 64
    assert find_fault(done.stderr) == fault


def test_an_assertion_that_was_killed_says_nothing_of_the_image() -> None:
    """Such as for want of memory."""
    assert run_asserts(["kill -9 $$"]).returncode == 137


@pytest.mark.parametrize(
    ("packages", "unbuilt"),
    [
        (("python-0.6.12",), "0.6.12"),
        (("cubin-0.6.12", "python-0.6.11.post3"), "0.6.11.post3"),
        (("jit_cache-0.6.12+cu130", "python-0.6.12"), ""),
        (("jit_cache-0.6.12+cu130",), ""),
        (("python-$(reboot)",), ""),
        ((), ""),
    ],
)
def test_an_image_without_prebuilt_kernels_is_recognised(
    tmp_path: Path, packages: tuple[str, ...], unbuilt: str
) -> None:
    site = tmp_path / "opt/env/lib/python3.12/site-packages"
    for name in packages:
        (site / f"flashinfer_{name}.dist-info").mkdir(parents=True)
    done = run_program(render_asserts(["true"]).replace(" /{usr", f" {tmp_path}/{{usr"))
    assert done.returncode == 0
    assert done.stdout.count("\n") == len(packages)
    assert find_unbuilt(done.stdout) == unbuilt


def test_a_long_command_is_cut_where_it_is_quoted() -> None:
    done = run_asserts(["test -e /x\n" * 100])
    assert len(find_fault(done.stderr)) <= SHOWN_COMMAND


@pytest.fixture
def counted_file(tmp_path: Path) -> Path:
    path = tmp_path / "a file's"
    path.write_text("del w13, w2\nempty_cache()\ndel w13, w2\n-e it's $HOME\n")
    return path


@pytest.mark.parametrize(
    ("pattern", "times"), [("empty_cache()", 1), ("^del w", 2), ("absent", 0), ("-e it's $HOME", 1)]
)
def test_a_pattern_in_as_many_lines_as_are_needed_is_good(counted_file: Path, pattern: str, times: int) -> None:
    done = run_asserts([Lines(file=str(counted_file), pattern=pattern, times=times)])
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(("pattern", "times", "count"), [("empty_cache()", 2, 1), ("^del w", 1, 2), ("absent", 1, 0)])
def test_an_image_whose_file_has_a_pattern_too_seldom_or_too_often_fails(
    counted_file: Path, pattern: str, times: int, count: int
) -> None:
    done = run_asserts([Lines(file=str(counted_file), pattern=pattern, times=times)])
    assert done.returncode == 64
    lines = f"lines of {counted_file} that match {pattern}: {count}, and {times} needed"
    assert done.stderr == f"the image is not what the recipe needs: {lines}\n"


def test_a_file_that_the_image_has_not_is_not_counted_as_none(tmp_path: Path) -> None:
    done = run_asserts([Lines(file=str(tmp_path / "gone"), pattern="x", times=0)])
    assert done.returncode == 64
    assert "No such file" in done.stderr
    assert "match x: unread, and 0 needed" in done.stderr
