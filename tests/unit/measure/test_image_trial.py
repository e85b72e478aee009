"""`sparkd use --image`: which bench is the one before, what is slower, and that a trial which is not kept goes back."""

import msgspec
import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.known_good_entries import RECIPE, SETTINGS
from tests.unit.node_reports import HEAD_REPORT
from tests.unit.plans import configured
from tests.unit.verdicts import present

from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, NotReadyError
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Row
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch
from sparkd.base.status.model import Phase, dump
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LevelFigures, Spread
from sparkd.tools.measure.image_trial import ImageTrial, compare, explain_fault, find_baseline
from sparkd.tools.measure.trial import StillCompilingError, check_bench

RATE = Spread(100, 95, 105)
LEVELS = tuple(LevelFigures(number, "static", 3 * number, 0, RATE, None, None, None, None) for number in (1, 4, 2))
RESULT = Benchmark(
    "2026-11-23T10:00:00.000+00:00", "n", "tiny", "tiny", HEAD_REPORT.plan_digest, "1", 128, 128, levels=LEVELS
)


def rows(result: Benchmark = RESULT, kernel: str = "6.1") -> tuple[Row, ...]:
    """A bench of an earlier launch, and the launch that runs."""
    then, now = (Facts({}, {"kernel": version}, {}) for version in (kernel, "6.1"))
    before = Launch("before", "2026-11-23", 0, "d", "tiny", then)
    bench = Bench("b", result.made, before.id, "tiny", msgspec.Raw(msgspec.json.encode(result)))
    return before, bench, replace(before, id=HEAD_REPORT.launch_id, facts=now)


def test_the_last_bench_of_the_very_plan_counts_under_its_largest_load() -> None:
    slow = replace(RESULT, plan="e")
    found = find_baseline((*rows(), *rows(slow)), HEAD_REPORT)
    assert found == replace(RESULT, levels=(LEVELS[1],))


@pytest.mark.parametrize(
    "known",
    [
        (),
        rows()[:2],
        rows(replace(RESULT, plan="e")),
        rows(kernel="6.2"),
        rows(replace(RESULT, levels=(replace(LEVELS[0], failed=1),))),
        rows(replace(RESULT, levels=(replace(LEVELS[0], compiled=1),))),
        rows(replace(RESULT, levels=(replace(LEVELS[1], requests=8),))),
        rows(replace(RESULT, levels=(replace(LEVELS[0], output_tokens_per_second=None),))),
    ],
    ids=["none", "of no known launch", "plan", "kernel", "failed", "cold", "two batches", "no rate"],
)
def test_what_is_not_to_be_compared_is_measured_again(known: tuple[Row, ...]) -> None:
    assert find_baseline(known, HEAD_REPORT) is None
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
    comparison = compare(replace(RESULT, levels=LEVELS[1:2]), rate)
    assert comparison.figures.startswith(f"4 requests at once: {rate.median:.1f} tokens/s (")
    assert comparison.figures.endswith("; 100.0 tokens/s (95.0 to 105.0) before, 2026-11-23 10:00 UTC")
    assert bool(comparison.fault) is slower


def bench(**changes: object) -> Benchmark:
    return replace(RESULT, levels=(replace(LEVELS[1], **changes),))


def test_a_bench_that_compiled_kernels_to_the_end_is_compared_with_none() -> None:
    """Neither as the figure before, which would let a slower image stay, nor as the new one, which would go back."""
    assert check_bench(bench()) == RATE
    with pytest.raises(StillCompilingError, match=r"^bench: 3 kernel\(s\) were compiled meanwhile") as raised:
        check_bench(bench(compiled=3))
    assert raised.value.hint == "sudo sparkd warm; then the same command again"
    assert explain_fault(raised.value, "vllm/vllm-openai:nightly") == (
        "bench: 3 kernel(s) were compiled meanwhile, so it has no speed to compare; "
        "to try it again, with the kernels it has now: sudo sparkd use --image vllm/vllm-openai:nightly"
    )


@pytest.mark.parametrize(
    ("benchmark", "reason"),
    [
        (replace(RESULT, levels=()), "bench: no answer"),
        (replace(RESULT, fault="HTTP 500"), "bench: HTTP 500"),
        (bench(fault="HTTP 500", compiled=3), "bench: HTTP 500"),
        (bench(output_tokens_per_second=None), "bench: no figure"),
    ],
)
def test_a_bench_without_a_figure_is_a_fault(benchmark: Benchmark, reason: str) -> None:
    with pytest.raises(NotReadyError) as raised:
        check_bench(benchmark)
    assert (raised.value.reason, explain_fault(raised.value, "i:2")) == (reason, reason)


def test_an_interrupted_bench_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        check_bench(replace(bench(compiled=3), interrupted=True))


TO = Chosen(RECIPE, SETTINGS.engine.model_copy(update={"image": "i:2"}))
SWITCH = Switch("f", Stage.DRAINING, TO, (), 0, 60, "2026-11-27")


def trial(tree: Tree, meanwhile: object = None, to: Chosen = TO) -> ImageTrial:
    """On a node that serves and has a bench of this plan. `meanwhile`: what becomes of the choice once it is shown."""
    tree.process(HEAD_REPORT.pid, "sparkd", start_time=HEAD_REPORT.start_time)
    tree.file("/run/sparkd/report.json", dump(replace(HEAD_REPORT, phase=Phase.SERVING)))
    for row in rows():
        history.write(Host(tree.root).files, row)

    def show(line: str) -> None:
        if not line.startswith("trying "):
            return
        if isinstance(meanwhile, BaseException):
            raise meanwhile
        found = present(in_file(tree))
        put(tree, replace(found, stage=meanwhile) if isinstance(meanwhile, Stage) else meanwhile)

    return ImageTrial(replace(SWITCH, to=to), configured(), Host(tree.root), show)


def put(tree: Tree, found: object) -> None:
    assert isinstance(found, Switch)
    tree.file(FILE.path, FILE.encode(found))


def in_file(tree: Tree) -> Switch | None:
    return FILE.read(Host(tree.root).files, pytest.fail)


def test_an_interrupt_goes_back_and_the_trial_would_end_by_itself(tree: Tree) -> None:
    with pytest.raises(KeyboardInterrupt):
        trial(tree, KeyboardInterrupt()).run(None)
    found = present(in_file(tree))
    assert found.to is not None
    assert (found.stage, found.to.is_same_plan(TO), bool(found.to.until)) == (Stage.RETURNING, True, True)


def test_what_is_in_force_and_cannot_be_tested_goes_back(tree: Tree) -> None:
    """The machine that runs the tests has no agent."""
    assert trial(tree, Stage.IN_FORCE).run(None)
    found = present(in_file(tree))
    assert found.stage is Stage.RETURNING


def test_what_a_person_chose_meanwhile_holds(tree: Tree) -> None:
    other = replace(SWITCH, chosen_at="2026-11-28", stage=Stage.IN_FORCE, to=replace(TO, image_id="sha256:" + "1" * 64))
    with pytest.raises(BlockedError, match="somebody has chosen"):
        trial(tree, other).keep(TO)
    assert in_file(tree) is None
    put(tree, other)
    with pytest.raises(BlockedError, match="somebody has chosen"):
        trial(tree).keep(TO)
    assert in_file(tree) == other


@pytest.mark.parametrize("until", ["", "2999-01-01T00:00:00+00:00"])
def test_what_is_kept_loses_the_end_of_its_trial_and_with_it_the_way_back(tree: Tree, until: str) -> None:
    tried, before = replace(TO, until="2998-01-01T00:00:00+00:00"), replace(TO, image_id="")
    put(tree, replace(SWITCH, stage=Stage.IN_FORCE, to=tried, back=(before,)))
    trial(tree, to=replace(TO, until=until)).keep(tried)
    found = present(in_file(tree))
    assert (found.to, found.back) == (replace(TO, until=until), (before,) if until else ())
