"""How the boots before this one ended: what is written down at each launch, and what the next boot makes of it."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit import plans
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.last_boot import LastBoot
from sparkd.base.host import Host
from sparkd.base.state.launch_history import FILE, LOADING, SERVING, End, LaunchHistory, MachineEnd

PLAN, OTHER = "d1", "d2"
CHECK = LastBoot(replace(plans.plan(), digest=PLAN), "head")
DONE = End("done", 0)


class Launch(NamedTuple):
    phase: str
    plan: str = PLAN
    is_cut: bool = True
    """Whether it ends with its machine; else in order."""


LOAD_CUT, LOAD_STOPPED = Launch(LOADING), Launch(LOADING, is_cut=False)
SERVICE_CUT, SERVICE_STOPPED = Launch(SERVING), Launch(SERVING, is_cut=False)


def history_of(*launches: Launch, known: LaunchHistory | None = None) -> LaunchHistory:
    """The history after one launch in each boot, written as the agent does."""
    known = known or LaunchHistory()
    for number, launch in enumerate(launches):
        boot_id = f"boot{number}"
        known = known.recover(boot_id, "").record_launch(launch.plan, boot_id, {"kernel": "6.17"})
        if launch.phase == SERVING:
            known = known.record_serving(boot_id)
        if not launch.is_cut:
            known = known.record_end(boot_id, DONE)
    return known


def judged(tree: Tree, known: LaunchHistory, boot_id: str = "now") -> Verdict:
    tree.file(FILE.path, FILE.encode(known))
    tree.file("/proc/sys/kernel/random/boot_id", f"{boot_id}\n")
    return CHECK.run(Host(tree.root))[1]


@pytest.mark.parametrize(
    ("launches", "level"),
    [
        pytest.param([], Level.OK, id="never launched"),
        pytest.param([SERVICE_STOPPED], Level.OK, id="shut down"),
        pytest.param([LOAD_STOPPED], Level.OK, id="shut down while loading"),
        pytest.param([SERVICE_CUT], Level.WARN, id="a power cut while serving"),
        pytest.param([LOAD_CUT] * 2, Level.WARN, id="two while loading"),
        pytest.param([LOAD_CUT] * 3, Level.BLOCK, id="three while loading"),
        pytest.param([LOAD_CUT] * 20, Level.BLOCK, id="more than are kept"),
        pytest.param([LOAD_CUT, LOAD_CUT, LOAD_STOPPED, LOAD_CUT], Level.WARN, id="a clean one between"),
        pytest.param([LOAD_CUT, LOAD_CUT, LOAD_STOPPED], Level.OK, id="a clean one last"),
        pytest.param([LOAD_CUT, LOAD_CUT, SERVICE_CUT, LOAD_CUT], Level.WARN, id="a good start between"),
        pytest.param([LOAD_CUT, Launch(LOADING, OTHER), LOAD_CUT, LOAD_CUT], Level.WARN, id="another plan between"),
        pytest.param([SERVICE_STOPPED, *[LOAD_CUT] * 3], Level.BLOCK, id="since a good start"),
        pytest.param([SERVICE_CUT, *[LOAD_CUT] * 2], Level.WARN, id="two while loading, one while serving"),
    ],
)
def test_only_three_loads_of_one_plan_in_a_row_that_end_with_their_machine_block(
    tree: Tree, launches: Sequence[Launch], level: Level
) -> None:
    expect(judged(tree, history_of(*launches)), level, needs_person=level is Level.BLOCK)


def test_this_boots_own_launch_is_not_judged(tree: Tree) -> None:
    assert judged(tree, history_of(*[LOAD_CUT] * 3), boot_id="boot2").level is Level.WARN
    assert judged(tree, history_of(LOAD_CUT), boot_id="boot0").level is Level.OK


def test_a_good_start_ends_the_warning(tree: Tree) -> None:
    known = history_of(LOAD_CUT, LOAD_CUT).record_launch(PLAN, "now", {})
    assert judged(tree, known).level is Level.WARN
    assert judged(tree, known.record_serving("now")).level is Level.OK


def test_a_launch_after_a_person_was_called_begins_at_zero(tree: Tree) -> None:
    handed_over = history_of(*[LOAD_CUT] * 3).record_end("now", End("a person is needed", 17))
    assert judged(tree, handed_over).level is Level.OK
    assert judged(tree, history_of(LOAD_CUT, LOAD_CUT, known=handed_over)).level is Level.WARN


def test_a_relaunch_that_takes_the_machine_down_counts_though_others_of_its_boot_ended_in_order(tree: Tree) -> None:
    known = LaunchHistory()
    for boot_id in ("a", "b", "c"):
        known = known.record_launch(PLAN, boot_id, {}).record_end(boot_id, DONE).record_launch(PLAN, boot_id, {})
    assert judged(tree, known).level is Level.BLOCK


def test_what_has_changed_since_the_last_good_start_is_named(tree: Tree) -> None:
    good = {"kernel": "6.17", "args.x": "1", "args.y": "1", "env.z": "1", "image": "same"}
    known = LaunchHistory().record_launch(PLAN, "a", good).record_serving("a").record_end("a", DONE)
    tried = {"kernel": "7.0", "args.x": "2", "args.y": "1", "env.z": "2", "env.new": "3", "image": "same"}
    for boot_id in ("b", "c", "d"):
        known = known.record_launch(PLAN, boot_id, tried)
    verdict = judged(tree, known)
    assert verdict.reason.endswith(
        "since the last good start changed: args.x 1 -> 2, env.new not set -> 3, env.z 1 -> 2, and 1 more"
    )
    assert verdict.hint.endswith("sudo systemctl start sparkd-head")
    assert "no good start is on record" in judged(tree, history_of(*[LOAD_CUT] * 3)).reason
    unchanged = history_of(SERVICE_STOPPED, *[LOAD_CUT] * 3)
    assert "since the last good start nothing that sparkd knows of has changed" in judged(tree, unchanged).reason


def test_a_machine_without_the_file_is_ok(tree: Tree) -> None:
    assert CHECK.run(Host(tree.root))[1].level is Level.OK


def test_a_file_that_is_wrong_counts_as_empty_and_one_that_can_not_be_read_is_no_answer(tree: Tree) -> None:
    tree.file(FILE.path, '{"schema": 1, "boots": 3}')
    assert CHECK.run(Host(tree.root))[1].level is Level.OK
    (tree.root / FILE.path.lstrip("/")).unlink()
    tree.folder(FILE.path)
    with pytest.raises(OSError, match="is a folder"):
        CHECK.probe(Host(tree.root))


def test_a_phase_that_somebody_has_written_moves_no_cursor(tree: Tree) -> None:
    tree.file(FILE.path, FILE.encode(history_of(Launch("\x1b[2J"))).replace(LOADING, "\\u001b[2J"))
    tree.file("/proc/sys/kernel/random/boot_id", "now\n")
    assert [launch.phase for launch in CHECK.probe(Host(tree.root)).before] == ["\\x1b[2J"]


def test_the_reason_has_how_the_machine_ended_if_that_is_of_this_boot(tree: Tree) -> None:
    known = history_of(SERVICE_CUT).record_machine_end(MachineEnd("now", "watchdog", "the hardware watchdog", ""), "")
    assert judged(tree, known).reason.endswith("serving, by what is left of it watchdog: the hardware watchdog")
    assert judged(tree, known, "later").reason.endswith("serving")
