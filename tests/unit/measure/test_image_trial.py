"""`sparkd use --image`: which bench is the one before, what is slower, and that a trial which is not kept goes back."""

import os
import signal
import threading
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import RECIPE, SETTINGS
from tests.unit.measure.benchmarks import benchmark, level
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.plans import configured
from tests.unit.switches import LATER, put_switch, switch_in
from tests.unit.verdicts import present

from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import FOLDER
from sparkd.base.state.history import Bench, Launch, Row
from sparkd.base.state.switch import Chosen, Stage, Switch
from sparkd.base.status.model import Phase, dump
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LevelFigures, Spread
from sparkd.tools.measure.image_trial import ImageTrial, compare, explain_fault, find_baseline
from sparkd.tools.measure.trial import StillCompilingError

LEVELS = (level(1), level(4), level(2))
RESULT = benchmark(*LEVELS)


def rows(result: Benchmark = RESULT, kernel: str = "6.1") -> tuple[Row, ...]:
    """A bench of an earlier launch, and the launch that runs."""
    then, now = (Facts({}, {"kernel": version}, {}) for version in (kernel, "6.1"))
    before = Launch("before", "2026-11-23", 0, "d", "tiny", then)
    bench = Bench("b", result.made, before.id, "tiny", msgspec.Raw(msgspec.json.encode(result)))
    return before, bench, replace(before, id=HEAD_REPORT.launch_id, facts=now)


def test_the_last_bench_of_the_very_plan_counts_under_its_largest_load() -> None:
    of_another_plan = replace(RESULT, plan="e")
    assert find_baseline((*rows(), *rows(of_another_plan)), HEAD_REPORT) == benchmark(level(4))


@pytest.mark.parametrize(
    "known",
    [(), rows()[:2], rows(replace(RESULT, plan="e")), rows(kernel="6.2")],
    ids=["none", "of no known launch", "plan", "kernel"],
)
def test_the_bench_of_another_plan_or_machine_is_no_baseline(known: tuple[Row, ...]) -> None:
    assert find_baseline(known, HEAD_REPORT) is None


@pytest.mark.parametrize(
    "unsteady",
    [level(failed=1), level(compiled=1), level(requests=8), level(output_tokens_per_second=None)],
    ids=["failed", "cold", "two batches", "no rate"],
)
def test_a_level_without_a_steady_rate_is_no_baseline(unsteady: LevelFigures) -> None:
    assert find_baseline(rows(benchmark(unsteady)), HEAD_REPORT) is None


def test_without_an_agent_there_is_no_baseline() -> None:
    assert find_baseline(rows(), None) is None


@pytest.mark.parametrize(
    ("rate", "slower"),
    [
        (Spread(80, 75, 85), True),
        (Spread(98, 96, 120), False),
        (Spread(93, 92, 94.9), True),
        (Spread(93, 91, 96), False),
        (Spread(200, 190, 210), False),
    ],
)
def test_slower_is_beyond_the_spread_and_both_figures_are_named(rate: Spread, slower: bool) -> None:
    comparison = compare(benchmark(level(4)), rate)
    assert comparison.figures.startswith(f"4 requests at once: {rate.median:.1f} tokens/s (")
    assert comparison.figures.endswith("; 100.0 tokens/s (95.0 to 105.0) before, 2026-11-23 10:00 UTC")
    assert bool(comparison.fault) is slower


def test_an_image_whose_kernels_were_still_compiled_can_be_tried_again() -> None:
    assert explain_fault(StillCompilingError("bench: 3 kernels", "x"), "vllm/vllm-openai:nightly") == (
        "bench: 3 kernels; "
        "to try it again, with the kernels it has now: sudo sparkd use --image vllm/vllm-openai:nightly"
    )


TO = Chosen(RECIPE, SETTINGS.engine.model_copy(update={"image": "i:2"}))
SWITCH = Switch("f", Stage.DRAINING, TO, (), 0, 60, "2026-11-27")


def trial(tree: Tree, on_trying: Callable[[], object] = lambda: None, to: Chosen = TO) -> ImageTrial:
    """A trial on a node that serves and has a bench of this plan. `on_trying` is called once the switch is written."""
    tree.process(HEAD_REPORT.pid, "sparkd", start_time=HEAD_REPORT.start_time)
    tree.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, phase=Phase.SERVING)))
    for row in rows():
        history.write(Host(tree.root).files, row)

    def show(line: str) -> None:
        if line.startswith("trying "):
            on_trying()

    return ImageTrial(replace(SWITCH, to=to), configured(), Host(tree.root), show)


def test_an_interrupt_goes_back_and_the_trial_would_end_by_itself(tree: Tree) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(tree, interrupt).run(None)
    switch = present(switch_in(tree))
    assert switch.stage is Stage.RETURNING
    assert present(switch.to).is_same_plan(TO)
    assert present(switch.to).until


def test_a_second_ctrl_c_while_the_file_is_awaited_leaves_no_trial_in_force(tree: Tree) -> None:
    def interrupt_twice() -> None:
        lock = open_lock(tree.path(f"{FOLDER}/.switch.json.lock"))
        assert try_lock(lock)
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        threading.Timer(0.4, os.close, (lock,)).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(tree, interrupt_twice).run(None)
    assert present(switch_in(tree)).stage is Stage.RETURNING


def test_a_plan_in_force_that_cannot_be_tested_goes_back(tree: Tree) -> None:
    """The machine that runs the tests has no agent."""

    def put_in_force() -> None:
        put_switch(tree, replace(present(switch_in(tree)), stage=Stage.IN_FORCE))

    assert trial(tree, put_in_force).run(None)
    assert present(switch_in(tree)).stage is Stage.RETURNING


OTHER = replace(SWITCH, chosen_at="2026-11-28", stage=Stage.IN_FORCE, to=replace(TO, image_id="sha256:" + "1" * 64))


@pytest.mark.parametrize("switch", [OTHER, None], ids=["another plan", "the configured one"])
def test_the_choice_of_a_person_meanwhile_holds(tree: Tree, switch: Switch | None) -> None:
    if switch is not None:
        put_switch(tree, switch)
    with pytest.raises(BlockedError, match="somebody has chosen"):
        trial(tree).keep(TO)
    assert switch_in(tree) == switch


@pytest.mark.parametrize("until", ["", LATER])
def test_a_kept_plan_loses_the_end_of_its_trial_and_with_it_the_way_back(tree: Tree, until: str) -> None:
    tried, before = replace(TO, until="2998-01-01T00:00:00+00:00"), replace(TO, image_id="")
    put_switch(tree, replace(SWITCH, stage=Stage.IN_FORCE, to=tried, back=(before,)))
    trial(tree, to=replace(TO, until=until)).keep(tried)
    switch = present(switch_in(tree))
    assert switch.to == replace(TO, until=until)
    assert switch.back == ((before,) if until else ())
