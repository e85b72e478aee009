"""The rules of a siege, and the faults that are planted to see them complain."""

from pathlib import Path

import pytest
from tests.siege.invariants import GROWN, judge_ends, judge_growth
from tests.siege.package import PLANTED, Edit

SOURCE = Path(__file__).parents[2] / "src/sparkd"


@pytest.mark.parametrize("edit", PLANTED.values(), ids=PLANTED.keys())
def test_what_is_planted_has_its_one_place_in_the_source(edit: Edit) -> None:
    assert (SOURCE / edit.path).read_text().count(edit.before) == 1


@pytest.mark.parametrize(
    ("end", "complaint"),
    [
        ({"cause": "killed-from-outside"}, None),
        ({"cause": "peer-failed"}, None),
        ({"cause": "kernel-oom"}, "cause: kernel-oom is none of"),
        ({"cause": "no-cause-of-ours"}, "history: no-cause-of-ours has no action"),
        ({"cause": ""}, "history: a launch has ended without a cause: launch-1"),
        (None, "history: a launch has ended without a cause: launch-1"),
    ],
)
def test_an_end_has_a_cause_that_the_fault_may_have_and_an_action(end: object, complaint: str | None) -> None:
    complaints = list(judge_ends({"launch-1": end}, ["kill-rank"], may_lack=False))
    assert [text.startswith(complaint or "-") for text in complaints] == [True] * (complaint is not None)


def test_a_power_cut_may_take_the_end_of_a_launch_with_it() -> None:
    assert not list(judge_ends({"launch-1": None}, ["power-cut"], may_lack=True))


@pytest.mark.parametrize("figure", GROWN)
def test_growth_beyond_its_bound_is_a_complaint(figure: str) -> None:
    first = dict.fromkeys(GROWN, 5)
    grown = {**first, figure: 5 + GROWN[figure]}
    assert not list(judge_growth(first, grown))
    grown[figure] += 1
    assert list(judge_growth(first, grown)) == [f"growth: {figure} was 5 and is {grown[figure]}"]
