"""The rules of a siege, and the faults that are planted to see them complain."""

from pathlib import Path

import pytest
from tests.siege.faults import BY_NAME, SECONDARY, UNSEEN
from tests.siege.invariants import GROWN, judge_causes, judge_ends, judge_growth, judge_guards
from tests.siege.package import PLANTED, Edit

from sparkd.base.lib.errors import Cause

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
    complaints = list(judge_ends({"launch-1": end}, ["kill-rank"]))
    assert [text.startswith(complaint or "-") for text in complaints] == [True] * (complaint is not None)


def test_a_power_cut_may_take_the_end_of_a_launch_with_it() -> None:
    assert not list(judge_ends({"launch-1": None}, ["kill-rank", "power-cut"]))


@pytest.mark.parametrize(
    ("causes", "faults", "complains"),
    [
        (["peer-failed", "peer-lost"], ["kill-rank"], True),
        (["peer-failed", "killed-from-outside"], ["kill-rank"], False),
        (["peer-silent", "peer-silent"], ["kill-rank", "cable-cut"], False),
        ([], ["kill-agent"], False),
    ],
)
def test_one_node_says_what_happened_unless_no_one_may_know(
    causes: list[str], faults: list[str], *, complains: bool
) -> None:
    assert bool(list(judge_causes(causes, faults))) is complains


@pytest.mark.parametrize(
    ("unit", "child", "complains"),
    [(1, 0, False), (0, 1, False), (1, 1, False), (0, 0, True), (2, 0, True), (1, 2, True)],
)
def test_a_rank_has_a_guard_of_each_kind_at_most(unit: int, child: int, *, complains: bool) -> None:
    assert bool(list(judge_guards(unit, child))) is complains


def test_what_refers_to_another_node_is_a_cause_of_sparkd() -> None:
    assert {*SECONDARY} <= {*Cause}
    assert {*UNSEEN} <= {*BY_NAME}


@pytest.mark.parametrize("figure", GROWN)
def test_growth_beyond_its_bound_is_a_complaint(figure: str) -> None:
    first = dict.fromkeys(GROWN, 5)
    grown = {**first, figure: 5 + GROWN[figure]}
    assert not list(judge_growth(first, grown))
    grown[figure] += 1
    assert list(judge_growth(first, grown)) == [f"growth: {figure} was 5 and is {grown[figure]}"]
