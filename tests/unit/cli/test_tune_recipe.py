"""`sparkd tune-recipe` before its first step: what it refuses, what it says; and what shortage of memory is."""

import argparse
import threading
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.commands import sparkd
from tests.unit.known_good_entries import RECIPE, SETTINGS
from tests.unit.limits import files_left
from tests.unit.nodes import until
from tests.unit.plans import configured
from tests.unit.verdicts import present

from sparkd.agent.actions import history
from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.preflight.runner import IDS
from sparkd.base.cluster import membership
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, EngineEndedError, UsageError
from sparkd.base.state import switch
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch
from sparkd.base.state.switch import Chosen, Stage, Switch
from sparkd.tools.cli import tune_recipe
from sparkd.tools.measure import climb, ladder_ends, trial
from sparkd.tools.measure.climb import FILE, Climb, Tuning
from sparkd.tools.measure.figures import DECODE, Spread
from sparkd.tools.measure.knobs import CONTEXT_LENGTH, SEQUENCES, Knob
from sparkd.tools.measure.ladder import MeasuredStep, Step
from sparkd.tools.measure.soak import Sample
from sparkd.tools.node.switch_progress import await_end
from sparkd.tools.node.switching import load_chosen

GIB = 1 << 30
CONFIG = configured(engine={"recipe": "mine"}, preflight={"skip": IDS})
KNOBS = (Knob(SEQUENCES, 4, 16, 4), Knob(CONTEXT_LENGTH, 512, 1024, 1024))
BASE = Chosen(RECIPE.model_copy(update={"name": "mine"}), SETTINGS.engine)
TUNING = Tuning("mine-tuned", "f", KNOBS, 16)
MINE = "schema: 1\nname: mine\nmodel: {path: m}\nimage: {ref: 'i:1'}\nnodes: {max: 1}\n"


def test_what_was_measured_is_read_back_as_it_was_written() -> None:
    good_step = MeasuredStep("", 0, Spread(1.5, 1, 2), 0.1, 4096)
    measured = (good_step, MeasuredStep("gpu-memory-utilization", 0.82, fault="x"))
    tuning = Tuning("a", "f", (Knob("gpu-memory-utilization", 0.8, 0.9, 0.8),), 4, measured, Step(SEQUENCES, 8), 1)
    assert FILE.decode(FILE.encode(tuning).encode()) == tuning


@pytest.mark.parametrize("words", [(), ("x", "--knob"), ("nowhere", "--knob", "max-num-seqs=1..2"), ("tiny-cpu",)])
def test_what_makes_no_sense_is_refused(words: tuple[str, ...]) -> None:
    assert sparkd("tune-recipe", *words).returncode in (2, 78)


def test_what_is_kept_is_continued_and_is_not_nothing_where_it_can_t_be_read_now(
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


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        ("mine", "mine-tuned", ""),
        ("mine", "mine", "there is a recipe mine already"),
        ("mine", "../x", "small letters"),
        ("mine", "a\nb", "small letters"),
        ("/etc/sparkd/recipes/mine.yaml", "up", "needs a name"),
    ],
)
def test_names(tree: Tree, base: str, name: str, words: str) -> None:
    tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
    if not words:
        ladder_ends.refuse_name(base, name, Host(tree.root))
        return
    with pytest.raises(UsageError, match=words):
        ladder_ends.refuse_name(base, name, Host(tree.root))


@pytest.mark.parametrize(
    ("knobs", "expect", "load"),
    [
        (KNOBS, {}, 16),
        (KNOBS[1:], {}, 4),
        (KNOBS[1:], {DECODE: {"1": 3, "8": 9}}, 8),
        ((Knob(SEQUENCES, 1, 900, 1),), {}, 256),
    ],
)
def test_the_load_is_the_same_in_all_steps(knobs: tuple[Knob, ...], expect: dict[str, object], load: int) -> None:
    base = Chosen(RECIPE.model_copy(update={"expect": expect}), SETTINGS.engine)
    assert ladder_ends.choose_load(knobs, base) == load


@pytest.mark.parametrize(
    ("yes", "despite", "begins"), [(False, False, False), (True, False, False), (True, True, True)]
)
def test_a_warning_needs_a_word_of_a_person(
    yes: bool, despite: bool, begins: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    args = argparse.Namespace(yes=yes, despite_warnings=despite)
    if begins:
        tune_recipe.confirm(args, ["slow"])
    else:
        with pytest.raises(UsageError):
            tune_recipe.confirm(args, ["slow"])
    assert "warning: slow" in capsys.readouterr().out
    if yes:
        tune_recipe.confirm(args, [])


def test_it_says_how_many_steps_and_how_long(tree: Tree) -> None:
    tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
    host = Host(tree.root)
    lines = [*ladder_ends.announce(TUNING, BASE, host)]
    assert lines[:3] == [
        "recipe mine under 16 requests at once, at most 4 steps:",
        "  max-num-seqs 4: up 8 16; down none",
        "  max-model-len 1024: up none; down 512",
    ]
    assert "whose time is not known" in lines[3]
    launch = Launch("1", "", 0, "d", "other", Facts({}, {}, {}), load_seconds=510)
    history.write(host.files, launch)
    half = Tuning("mine-tuned", "f", KNOBS, 16, (MeasuredStep("", 0), MeasuredStep(SEQUENCES, 8)))
    lines = [*ladder_ends.announce(half, BASE, host)]
    assert lines[0].endswith("at most 2 steps more, measured: 2:")
    assert lines[3] == "each about 10 min, all 20 min, the last load's time included"
    history.write(host.files, replace(launch, id="2", recipe="mine", load_seconds=210))
    history.write(host.files, replace(launch, id="3"))
    assert [*ladder_ends.announce(half, BASE, host)][3].startswith("each about 5 min"), "of this recipe"


def put(tree: Tree, stage: Stage, to: Chosen | None, *back: Chosen) -> Switch:
    found = Switch(membership.fingerprint_config(CONFIG, Host(tree.root)), stage, to, back, 0, 60, "1")
    tree.file(switch.FILE.path, switch.FILE.encode(found))
    return found


@pytest.mark.parametrize("engine", [{"args": {"max-model-len": 1024}}, {"script": "/srv/own.sh"}])
def test_a_knob_without_effect_is_refused_before_the_first_step(tree: Tree, engine: dict[str, object]) -> None:
    tree.file("/etc/sparkd/recipes/mine.yaml", f"{MINE}args: {{max-num-seqs: 4, max-model-len: 1024}}\n")
    host, config = Host(tree.root), configured(engine={"recipe": "mine"})
    base = load_chosen("mine", 0, config, host)
    ladder_ends.refuse_without_effect(KNOBS, base, config, host)
    config = configured(engine={"recipe": "mine", **engine})
    base = load_chosen("mine", 0, config, host)
    with pytest.raises(UsageError, match="changes nothing"):
        ladder_ends.refuse_without_effect(KNOBS, base, config, host)
    with pytest.raises(UsageError, match="own value alone"):
        ladder_ends.refuse_without_effect([Knob(SEQUENCES, 4, 4, 4)], base, config, host)


def test_a_switch_from_another_configuration_is_nothing_to_go_back_to() -> None:
    before = Switch("earlier", Stage.TRYING, step("mine-tuned"), (step("older"),))
    assert climb.find_start(before, "now", lambda _: True) == ((), None)


class Climbing(Climb):
    """From a plan that is not in force, on a node where each check is skipped.

    `meanwhile` is called while a step is measured.
    """

    def __init__(self, tree: Tree, meanwhile: Callable[[], object] = lambda: None, gone_seconds: float = 60.0) -> None:
        base = Chosen(BASE.recipe.model_copy(update={"args": {SEQUENCES: 4}}), BASE.engine)
        tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
        super().__init__(TUNING, base, CONFIG, Host(tree.root), print, gone_seconds=gone_seconds)
        self.meanwhile = meanwhile

    def smoke_and_bench(self, step: Step) -> MeasuredStep:
        self.meanwhile()
        return MeasuredStep(*step)


def act_on_choice(tree: Tree, act: Callable[[Switch], object]) -> threading.Thread:
    """As the agent: act once a plan is to be switched to."""

    def act_once() -> None:
        until(lambda: (choice := in_file(tree)) is not None and choice.stage is Stage.DRAINING)
        choice = present(in_file(tree))
        act(choice)

    thread = threading.Thread(target=act_once)
    thread.start()
    return thread


def begin_step(tree: Tree, choice: Switch) -> None:
    assert compare_and_swap(Host(tree.root).files, switch.FILE, choice, replace(choice, stage=Stage.IN_FORCE))


def drop_choice(tree: Tree) -> None:
    (tree.root / switch.FILE.path[1:]).unlink()


def test_the_end_is_the_plan_before_also_while_that_loads(tree: Tree) -> None:
    """It is in force, and neither serves now nor is proven."""
    tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
    put(tree, Stage.IN_FORCE, step("fresh"), step("older"))
    with pytest.raises(BlockedError, match="no agent runs any more"):
        Climbing(tree, gone_seconds=2.0).run()
    choice = present(in_file(tree))
    assert (choice.stage, choice.back) == (Stage.DRAINING, (step("fresh"), step("older")))


def test_a_step_that_somebody_has_ended_is_noticed(tree: Tree) -> None:
    agent = act_on_choice(tree, partial(begin_step, tree))
    climbing = Climbing(tree, partial(drop_choice, tree))
    with pytest.raises(BlockedError, match="somebody has chosen what is configured"):
        climbing.run()
    agent.join()
    assert climbing.tuning.measured == ()


def test_a_step_that_the_agent_has_gone_back_from_is_a_bad_one(tree: Tree) -> None:
    agent = act_on_choice(tree, lambda _: drop_choice(tree))
    climbing = Climbing(tree, gone_seconds=6)  # for so long it looks for an end, too
    climbing.run()
    agent.join()
    (measured,) = climbing.tuning.measured
    assert measured.fault.endswith("is not in force: sparkd status")


def test_a_history_that_can_t_be_read_now_ends_no_wait_for_an_end(tree: Tree) -> None:
    with files_left(0):
        assert await_end(Host(tree.root), lambda _: True, gone_seconds=0.0) is None


def step(name: str, until: str = "") -> Chosen:
    return Chosen(RECIPE.model_copy(update={"name": name}), SETTINGS.engine, until=until)


def in_file(tree: Tree) -> Switch | None:
    return switch.FILE.read(Host(tree.root).files)


LATER = "2999-01-01T00:00:00+00:00"


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.TRYING, Stage.IN_FORCE])
def test_a_step_of_a_killed_command_is_left_too_in_the_end(tree: Tree, stage: Stage) -> None:
    tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
    put(tree, stage, step("mine-tuned", LATER), step("before"))
    with Climb(TUNING, BASE, CONFIG, Host(tree.root), print):
        pass
    found = present(in_file(tree))
    assert (found.stage, found.before) == (Stage.RETURNING, step("before"))


@pytest.mark.parametrize("to", [step("other"), step("other", LATER), step("mine-tuned")])
def test_what_a_person_chose_is_not_left(tree: Tree, to: Chosen) -> None:
    """A plan of the ladder's own name without an end is a person's, too."""
    tree.file("/etc/sparkd/recipes/mine.yaml", MINE)
    before = put(tree, Stage.IN_FORCE, to)
    with Climb(TUNING, BASE, CONFIG, Host(tree.root), print):
        pass
    assert in_file(tree) == before
    put(tree, Stage.TRYING, to)
    with pytest.raises(BlockedError, match="on the way to recipe"):
        Climb(TUNING, BASE, CONFIG, Host(tree.root), print)


@pytest.mark.parametrize(
    ("free", "words"),
    [
        ({"a": 3 * GIB, "b": 2 * GIB}, ""),
        ({"a": 3 * GIB, "b": GIB}, "1.0 GiB of memory left on b, 1.5 GiB needed"),
        ({"a": 3 * GIB, "b": None}, "the memory of b is not known"),
        (None, "the memory of this node is not known"),
    ],
)
def test_memory_near_the_guards_floor_is_a_fault_on_any_node(free: dict[str, int | None] | None, words: str) -> None:
    seen = None if free is None else Sample(0.0, free, 0, 0, None, None)
    assert climb.find_shortage(seen, GIB // 2).startswith(words)
    assert bool(climb.find_shortage(seen, GIB // 2)) == bool(words)


def test_an_engine_that_ends_in_the_first_smoke_test_is_one_that_ended() -> None:
    tries = iter([["the answer ended early"]])

    def smoke() -> list[str]:
        for faults in tries:
            return faults
        raise BlockedError("the engine has just ended", "x")

    with pytest.raises(EngineEndedError, match="the answer ended early; the engine has just ended"):
        trial.smoke_twice(smoke)
    with pytest.raises(BlockedError, match=r"^the engine has just ended \(x\)$"):
        trial.smoke_twice(smoke)


@pytest.mark.parametrize(("tries", "faults"), [([[]], []), ([["x"], []], []), ([["x"], ["y"]], ["y"])])
def test_faults_of_a_smoke_test_count_where_a_second_one_has_some_too(
    tries: list[list[str]], faults: list[str]
) -> None:
    assert trial.smoke_twice(iter(tries).__next__) == faults


def test_an_agent_that_is_gone_is_no_fault_of_the_step(tree: Tree) -> None:
    with pytest.raises(BlockedError, match="no agent runs any more"):
        Climbing(tree, gone_seconds=1).run()
    drop_choice(tree)

    def end() -> None:
        raise EngineEndedError("it ended")

    agent = act_on_choice(tree, partial(begin_step, tree))
    with pytest.raises(BlockedError, match="it ended"):
        Climbing(tree, end, gone_seconds=6).run()
    agent.join()
