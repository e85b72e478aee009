"""Results of image.assert: by image and assertions, bounded, and moved from where earlier versions kept them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone

from sparkd.agent.actions import Actions
from sparkd.base.state.file import FOLDER
from sparkd.base.state.launch_history import (
    EARLIER,
    FAULT_LIMIT,
    FILE,
    IMAGES_KEPT,
    AssertResult,
    LaunchHistory,
    load_history,
)

EMPTY = LaunchHistory()
CHECKED = AssertResult("no deep_gemm", 1.5, "2026-11-22T18:00:00Z")


def test_a_result_holds_for_one_image_and_its_assertions() -> None:
    history = EMPTY.record_asserts("sha256:1", "true", CHECKED)
    assert history.assert_result("sha256:1", "true") == CHECKED
    assert history.assert_result("sha256:2", "true") is None
    assert history.assert_result("sha256:1", "false") is None


def test_the_oldest_results_go() -> None:
    history = EMPTY
    for number in (*range(IMAGES_KEPT + 3), 3):
        history = history.record_asserts(str(number), "true", CHECKED)
    checked = [number for number in range(IMAGES_KEPT + 3) if history.assert_result(str(number), "true")]
    assert checked == [3, *range(4, IMAGES_KEPT + 3)]
    assert history.record_asserts("new", "true", CHECKED).assert_result("3", "true"), "it was checked again"


def test_a_fault_is_shown_on_one_line_of_bounded_length() -> None:
    history = EMPTY.record_asserts("i", "p", replace(CHECKED, fault="a\nb\x1b[31m" + "c" * 5000))
    result = history.assert_result("i", "p")
    assert result is not None
    assert result.fault.isprintable()
    assert len(result.fault) <= FAULT_LIMIT


EARLIER_ASSERTS = EMPTY.record_asserts("old", "true", CHECKED).record_asserts("both", "true", CHECKED).asserts
ASSERTS = EMPTY.record_asserts("both", "true", replace(CHECKED, fault="")).asserts
RUBBISH = "{"


@pytest.fixture
def upgraded(tree: Tree) -> Iterator[AgentUnderTest]:
    """It writes to its disk. Its agent before was killed, in boot `boot`, after a boot that ended with its machine."""
    with agent_under_test(tree, 0, alone()) as made:
        agent = made.agent
        made.remake(actions=Actions(agent.host, agent.loop, agent.actions.owner, -1))
        history = EMPTY.record_launch("d", "before", {}).record_launch(agent.plan.counted_as, "boot", {})
        on_disk(made).file(FILE.path, FILE.encode(history))
        yield made


def on_disk(made: AgentUnderTest) -> Tree:
    return Tree(Path(made.agent.host.files.root))


@pytest.mark.parametrize(
    ("earlier", "present", "faults"),
    [
        (EARLIER.encode(EARLIER.kind(EARLIER_ASSERTS)), {}, ("no deep_gemm", "no deep_gemm")),
        (EARLIER.encode(EARLIER.kind(EARLIER_ASSERTS)), ASSERTS, ("no deep_gemm", "")),
        (None, ASSERTS, (None, "")),
        (RUBBISH, ASSERTS, (None, "")),
        (RUBBISH, {}, (None, None)),
    ],
    ids=["not moved yet", "the power went between", "moved", "damaged and moved", "damaged"],
)
def test_what_an_earlier_version_knew_of_images_moves_at_the_first_start_and_nothing_else_changes(
    upgraded: AgentUnderTest, earlier: str | None, present: Mapping[str, AssertResult], faults: tuple[str | None, ...]
) -> None:
    agent, tree = upgraded.agent, on_disk(upgraded)
    tree.file(FILE.path, FILE.encode(replace(load_history(agent.host.files), asserts=present)))
    if earlier is not None:
        tree.file(EARLIER.path, earlier, 0o600)

    def known() -> tuple[str | None, ...]:
        results = (agent.store.read_launches().assert_result(image, "true") for image in ("old", "both"))
        return tuple(None if result is None else result.fault for result in results)

    assert known() == faults, "a dry run before the first start shows it"
    for _ in range(2):
        agent.store.record_start(agent.boot_id)
        assert known() == faults
        assert agent.store.read_launches().failures == {agent.plan.counted_as: 1}, "the killed agent's launch, once"
        assert [one.open for one in agent.store.read_launches().boots] == [True, False]
        assert os.listdir(tree.root / FOLDER[1:]) == [FILE.name]
    assert upgraded.events.lines == []
    (tree.root / FILE.path[1:]).unlink()
    assert agent.store.read_launches() == EMPTY, "a person has removed it"


class FullDisk(Actions):
    def write_state(self, name: str, text: str, mode: int) -> None:
        raise OSError(28, "No space left on device")


def test_an_earlier_file_stays_while_the_disk_is_full_and_one_that_cannot_go_is_reported(
    upgraded: AgentUnderTest,
) -> None:
    agent, tree = upgraded.agent, on_disk(upgraded)
    tree.file(EARLIER.path, EARLIER.encode(EARLIER.kind(EARLIER_ASSERTS)))
    full = upgraded.remake(actions=FullDisk(agent.host, agent.loop, agent.actions.owner, -1))
    full.store.record_start(agent.boot_id)
    assert agent.store.read_launches().assert_result("old", "true") == CHECKED
    (tree.root / EARLIER.path[1:]).unlink()
    tree.folder(EARLIER.path)
    agent.store.record_start(agent.boot_id)
    agent.store.record_start(agent.boot_id)
    assert agent.store.read_launches().failures == {agent.plan.counted_as: 1}
    assert [line for line in upgraded.events.lines if EARLIER.name in line] == upgraded.events.lines[-1:]
