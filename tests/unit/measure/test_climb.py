"""The steps of a ladder as switches of the plan: which way is back, who else has chosen, and what is a step's fault."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.measure.ladders import BASE, MINE, MINE_FILE, TUNING
from tests.unit.nodes import until
from tests.unit.plans import configured
from tests.unit.switches import LATER, plan_of, put_switch, switch_in
from tests.unit.verdicts import present

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.preflight.runner import IDS
from sparkd.base.host import Host
from sparkd.base.lib.errors import BlockedError, Cause, EngineEndedError, NotReadyError
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.lib.text import GIB
from sparkd.base.state import launch_history
from sparkd.base.state import switch as switch_file
from sparkd.base.state.file import FOLDER
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.state.switch import LATE, NO_REASON, TRIES, Chosen, Stage, Switch
from sparkd.tools.measure.climb import EDITED_HINT, FILE, Climb, find_shortage, find_start
from sparkd.tools.measure.figures import Spread
from sparkd.tools.measure.knobs import SEQUENCES
from sparkd.tools.measure.ladder import BASE_STEP, MeasuredStep, Step
from sparkd.tools.measure.soak import Sample

CONFIG = configured(engine={"recipe": "mine"}, preflight={"skip": IDS})
CONFIGURED = '[engine]\nrecipe = "mine"\n'
AS_IT_IS = MeasuredStep("", 0, Spread(1.5, 1, 2), 0.1, 4096)


def put(tree: Tree, stage: Stage, to: Chosen | None, *back: Chosen) -> Switch:
    return put_switch(tree, Switch("", stage, to, back, 0, 60, "1"), CONFIG)


def test_a_tuning_is_read_back_as_it_was_written() -> None:
    measured = (MeasuredStep("", 0, Spread(1.5, 1, 2), 0.1, 4096), MeasuredStep(SEQUENCES, 8, fault="x"))
    tuning = replace(TUNING, measured=measured, tried=Step(SEQUENCES, 8), tries=1)
    assert FILE.decode(FILE.encode(tuning).encode()) == tuning


def test_a_switch_from_another_configuration_is_nothing_to_go_back_to() -> None:
    before = Switch("earlier", Stage.TRYING, plan_of("mine-tuned"), (plan_of("older"),))
    assert find_start(before, "now", lambda _: True) == ((), None)


class Climbing(Climb):
    """From a plan that is not in force, on a node where each check is skipped.

    `meanwhile` is called while a step is measured.
    """

    def __init__(self, tree: Tree, meanwhile: Callable[[], object] = lambda: None, gone_seconds: float = 60.0) -> None:
        base = replace(BASE, recipe=BASE.recipe.model_copy(update={"args": {SEQUENCES: 4}}))
        tree.file(MINE_FILE, MINE)
        tree.file("/etc/sparkd/sparkd.toml", CONFIGURED)
        super().__init__(TUNING, base, CONFIG, Host(tree.root), print, gone_seconds=gone_seconds)
        self.meanwhile = meanwhile

    def smoke_and_bench(self, step: Step) -> MeasuredStep:
        self.meanwhile()
        return MeasuredStep(*step)


def act_on_choice(tree: Tree, act: Callable[[Switch], object]) -> threading.Thread:
    """Act in place of the agent, once there is a plan to switch to."""

    def act_once() -> None:
        until(lambda: (choice := switch_in(tree)) is not None and choice.stage is Stage.DRAINING)
        act(present(switch_in(tree)))

    thread = threading.Thread(target=act_once)
    thread.start()
    return thread


def begin_step(tree: Tree, choice: Switch) -> None:
    assert compare_and_swap(Host(tree.root).files, switch_file.FILE, choice, replace(choice, stage=Stage.IN_FORCE))


def drop_choice(tree: Tree) -> None:
    (tree.root / switch_file.FILE.path[1:]).unlink()


def test_the_end_is_the_plan_before_also_while_that_loads(tree: Tree) -> None:
    """It is in force, and neither serves now nor is proven."""
    tree.file(MINE_FILE, MINE)
    put(tree, Stage.IN_FORCE, plan_of("fresh"), plan_of("older"))
    with pytest.raises(BlockedError, match="no agent runs any more"):
        Climbing(tree, gone_seconds=2.0).run()
    choice = present(switch_in(tree))
    assert choice.stage is Stage.DRAINING
    assert choice.back == (plan_of("fresh"), plan_of("older"))


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


@pytest.mark.parametrize(
    ("reason", "measured", "tries"),
    [(LATE, (AS_IT_IS,), 0), (NO_REASON, (AS_IT_IS,), 1), (NO_REASON, (), 0)],
    ids=["not launched", "loaded without a verdict", "the recipe as it is"],
)
def test_a_plan_without_a_verdict_is_no_bad_step(
    tree: Tree, reason: str, measured: tuple[MeasuredStep, ...], tries: int
) -> None:
    """As one that lost its power during the load, and stays away: each step that was left counted as bad for good."""

    def go_back(_choice: Switch) -> None:
        end = End(f"back: {reason}: waits for spark2", at=LATER, cause=Cause.SWITCH_FAILED)
        tree.file(launch_history.FILE.path, launch_history.FILE.encode(LaunchHistory(last_exit=end)))
        drop_choice(tree)

    agent = act_on_choice(tree, go_back)
    climbing = Climbing(tree, gone_seconds=2)
    climbing.tuning = replace(TUNING, measured=measured)
    with pytest.raises(BlockedError, match=r"the step has no verdict: .* waits for spark2"):
        climbing.run()
    agent.join()
    assert (climbing.tuning.measured, climbing.tuning.tries) == (measured, tries)


@pytest.mark.parametrize(
    ("edit", "words", "hint"),
    [
        (f"{CONFIGURED}args.seed = 7\n", "the configuration has changed meanwhile", EDITED_HINT),
        ("[engine", "sparkd.toml.*; the step: .* is not in force", "sparkd config show"),
    ],
)
def test_a_step_that_the_agent_has_dropped_for_another_configuration_is_no_bad_one(
    tree: Tree, edit: str, words: str, hint: str
) -> None:
    """After an edit of what is configured it drops each step, and all that were left counted as bad for good."""

    def configure(_choice: Switch) -> None:
        tree.file("/etc/sparkd/sparkd.toml", edit)
        drop_choice(tree)

    agent = act_on_choice(tree, configure)
    climbing = Climbing(tree, gone_seconds=2)
    with pytest.raises(BlockedError, match=words) as blocked:
        climbing.run()
    agent.join()
    assert hint in blocked.value.hint
    assert climbing.tuning.measured == ()


def test_the_end_of_an_engine_whose_agent_is_gone_is_no_fault_of_the_step(tree: Tree) -> None:
    def end() -> None:
        raise EngineEndedError("it ended")

    agent = act_on_choice(tree, partial(begin_step, tree))
    with pytest.raises(BlockedError, match="it ended"):
        Climbing(tree, end, gone_seconds=6).run()
    agent.join()


@pytest.mark.parametrize(
    ("cause", "reason"), [(Cause.PEER_LOST, "the engine was ended: spark2"), (Cause.ENGINE_ENDED, "")]
)
def test_requests_that_fail_as_another_node_is_lost_are_no_fault_of_the_step(
    tree: Tree, cause: Cause, reason: str
) -> None:
    def lose_peer() -> None:
        end = End("spark2 is gone", at=LATER, cause=cause)
        tree.file(launch_history.FILE.path, launch_history.FILE.encode(LaunchHistory(last_exit=end)))
        raise NotReadyError("bench: the server closed the connection")

    agent = act_on_choice(tree, partial(begin_step, tree))
    climbing = Climbing(tree, lose_peer, gone_seconds=6)
    with pytest.raises(BlockedError, match=reason) if reason else nullcontext():
        climbing.run()
    agent.join()
    assert [step.fault for step in climbing.tuning.measured] == ["bench: the server closed the connection"] * (
        not reason
    )


@pytest.mark.parametrize(
    ("cause", "measured", "tries"),
    [
        (Cause.PEER_SILENT, (AS_IT_IS,), TRIES),
        (Cause.MEMORY_TAKEN, (AS_IT_IS,), TRIES),
        (Cause.STOP_REQUESTED, (AS_IT_IS,), 0),
        (Cause.PEER_SILENT, (), 0),
    ],
    ids=["another node falls silent", "others take the memory", "a person stops the unit", "with the recipe as it is"],
)
def test_only_a_step_whose_load_may_silence_another_node_has_been_tried(
    tree: Tree, cause: Cause, measured: tuple[MeasuredStep, ...], tries: int
) -> None:
    def end_engine() -> None:
        end = End("spark2 does not answer", at=LATER, cause=cause)
        tree.file(launch_history.FILE.path, launch_history.FILE.encode(LaunchHistory(last_exit=end)))
        raise NotReadyError("bench: timed out")

    for _ in range(TRIES):
        agent = act_on_choice(tree, partial(begin_step, tree))
        climbing = Climbing(tree, end_engine, gone_seconds=6)
        climbing.tuning = FILE.read(Host(tree.root).files) or replace(TUNING, measured=measured)
        with pytest.raises(BlockedError, match="the engine was ended: spark2 does not answer"):
            climbing.run()
        agent.join()
        drop_choice(tree)
    assert (climbing.tuning.tries, climbing.tuning.measured) == (tries, measured)


def test_a_step_that_was_tried_often_enough_is_a_bad_one(tree: Tree) -> None:
    climbing = Climbing(tree)
    climbing.tuning = replace(TUNING, tried=BASE_STEP, tries=TRIES)
    climbing.run()
    (step,) = climbing.tuning.measured
    assert step.fault == f"begun {TRIES} times, it ended without a verdict"


def test_a_second_ctrl_c_while_the_file_is_awaited_leaves_no_step_in_force(tree: Tree) -> None:
    tree.file(MINE_FILE, MINE)
    put(tree, Stage.IN_FORCE, plan_of("mine-tuned", LATER), plan_of("before"))
    lock = open_lock(tree.path(f"{FOLDER}/.switch.json.lock"))
    assert try_lock(lock)
    threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    threading.Timer(0.4, os.close, (lock,)).start()
    with pytest.raises(KeyboardInterrupt), Climb(TUNING, BASE, CONFIG, Host(tree.root), print):
        pass
    assert present(switch_in(tree)).stage is Stage.RETURNING


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.TRYING, Stage.IN_FORCE])
def test_a_step_of_a_killed_command_is_left_too_in_the_end(tree: Tree, stage: Stage) -> None:
    tree.file(MINE_FILE, MINE)
    put(tree, stage, plan_of("mine-tuned", LATER), plan_of("before"))
    with Climb(TUNING, BASE, CONFIG, Host(tree.root), print):
        pass
    left = present(switch_in(tree))
    assert left.stage is Stage.RETURNING
    assert left.before == plan_of("before")


@pytest.mark.parametrize("to", [plan_of("other"), plan_of("other", LATER), plan_of("mine-tuned")])
def test_what_a_person_chose_is_not_left(tree: Tree, to: Chosen) -> None:
    """A plan of the ladder's own name without an end is a person's, too."""
    tree.file(MINE_FILE, MINE)
    before = put(tree, Stage.IN_FORCE, to)
    with Climb(TUNING, BASE, CONFIG, Host(tree.root), print):
        pass
    assert switch_in(tree) == before
    put(tree, Stage.TRYING, to)
    with pytest.raises(BlockedError, match="on the way to recipe"):
        Climb(TUNING, BASE, CONFIG, Host(tree.root), print)


@pytest.mark.parametrize(
    ("free", "shortage"),
    [
        ({"a": 3 * GIB, "b": 2 * GIB}, ""),
        (
            {"a": 3 * GIB, "b": GIB},
            "1.0 GiB of memory left on b, 1.5 GiB needed (memory.floor_mib and 1 GiB)",
        ),
        ({"a": 3 * GIB, "b": None}, "the memory of b is not known"),
    ],
)
def test_memory_near_the_guards_floor_is_a_fault_on_any_node(free: dict[str, int | None], shortage: str) -> None:
    assert find_shortage(Sample(0.0, free, 0, 0, None, None), GIB // 2) == shortage


def test_memory_that_can_t_be_read_is_a_fault() -> None:
    assert find_shortage(None, GIB // 2) == "the memory of this node is not known"
