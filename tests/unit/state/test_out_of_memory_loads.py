"""Loads that ended for want of memory, after which fewer compilers run at once."""

import pytest

from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch, count_out_of_memory_loads
from sparkd.base.state.launch_history import End

OOM = End("x", cause="kernel-oom")


def launch(end: End | None = OOM, plan: str = "p", load_seconds: float | None = None) -> Launch:
    return Launch("i", "", 0, plan, "r", Facts({}, {}, {}), load_seconds=load_seconds, end=end)


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        ((), 0),
        ((End("memory ran out", cause="memory-guard"),), 1),
        ((OOM, End("RuntimeError: Ninja build failed. Ninja output:", cause="engine-error")), 2),
        ((OOM, End("stopped", cause="stop-requested")), 0),
        ((OOM, None, OOM), 1),
    ],
)
def test_loads_that_ended_for_want_of_memory_are_counted_from_the_last(
    ends: tuple[End | None, ...], count: int
) -> None:
    assert count_out_of_memory_loads(map(launch, ends), "p") == count


def test_loads_of_another_plan_are_left_out() -> None:
    assert count_out_of_memory_loads([launch(), launch(End("stopped"), plan="q")], "p") == 1


def test_a_load_after_which_the_engine_served_ends_the_count() -> None:
    assert count_out_of_memory_loads([launch(), launch(load_seconds=60.0)], "p") == 0
