"""`sparkd tune-recipe` before its first step: what it refuses, and which tuning it continues."""

from argparse import Namespace

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.limits import files_left
from tests.unit.measure.ladders import TUNING

from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.tools.cli import tune_recipe
from sparkd.tools.measure.climb import FILE
from sparkd.tools.measure.knobs import SEQUENCES
from sparkd.tools.measure.ladder import MeasuredStep, Step


@pytest.mark.parametrize("words", [(), ("x", "--knob"), ("nowhere", "--knob", "max-num-seqs=1..2"), ("tiny-cpu",)])
def test_words_that_make_no_ladder_are_refused(words: tuple[str, ...]) -> None:
    assert sparkd("tune-recipe", *words).returncode in (2, 78)


def test_a_kept_tuning_is_continued_and_is_not_nothing_where_it_can_t_be_read_now(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    host, kept = Host(tree.root), replace(TUNING, measured=(MeasuredStep("", 0),), tried=Step(SEQUENCES, 8), tries=1)
    assert tune_recipe.resume(TUNING, host) == TUNING
    tree.file(FILE.path, FILE.encode(kept))
    with files_left(0), pytest.raises(OSError, match=r"tune-recipe\.json can't be read: Too many open files"):
        tune_recipe.resume(TUNING, host)
    assert tune_recipe.resume(TUNING, host) == kept
    other = replace(TUNING, at_once=8)
    assert tune_recipe.resume(other, host) == other
    tree.file(FILE.path, "{")
    assert tune_recipe.resume(TUNING, host) == TUNING
    steps, broken = capsys.readouterr().out.splitlines()
    assert steps.startswith("dropped: steps of ")
    assert broken.startswith(f"dropped: {FILE.path} can't be read")


@pytest.mark.parametrize("yes", [False, True])
def test_a_warning_needs_a_word_of_a_person(yes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        tune_recipe.confirm(Namespace(yes=yes, despite_warnings=False), ["slow"])
    assert "warning: slow" in capsys.readouterr().out


def test_an_option_begins_despite_warnings_which_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tune_recipe.confirm(Namespace(yes=True, despite_warnings=True), ["slow"])
    assert "warning: slow" in capsys.readouterr().out


def test_without_a_warning_yes_alone_begins() -> None:
    tune_recipe.confirm(Namespace(yes=True, despite_warnings=False), [])
