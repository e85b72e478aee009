"""What the agent writes down of a launch, for the next boot of the machine to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, MemoryHands, alone, life

from sparkd.agent import BOOTS_FILE
from sparkd.ending import mourn, stop
from sparkd.errors import EngineEndedError, NeedsPersonError
from sparkd.hands import STATE
from sparkd.host.boots import LOADING, PATH, SERVING, Boots, dump, parse
from sparkd.service import Service


@pytest.fixture
def agent(tree: Tree) -> Iterator[Life]:
    """In boot `boot`, with a launch under way, after a boot that ended with its machine."""
    with life(tree, 0, alone()) as made:
        known = Boots().opened("before", "d", {}).opened("boot", "d", {"kernel": "6.17"})
        Tree(Path(made.agent.host.files.root)).file(PATH, dump(known))
        yield made


def written(made: Life) -> Boots:
    hands = made.agent.hands
    assert isinstance(hands, MemoryHands)
    return parse(hands.written[BOOTS_FILE])


def test_the_file_that_is_written_is_the_one_that_is_read() -> None:
    assert str(STATE / BOOTS_FILE) == PATH


def test_a_good_start_is_written_down_with_what_it_was_made_of(agent: Life) -> None:
    Service(agent.agent)
    assert [(one.boot_id, one.phase, one.open) for one in written(agent).boots] == [("boot", SERVING, True)]
    assert written(agent).good == {"kernel": "6.17"}


def test_a_stop_closes_the_launch(agent: Life) -> None:
    stop(agent.agent, None)
    assert [(one.phase, one.open) for one in written(agent).boots] == [(LOADING, True), (LOADING, False)]


def test_a_failure_closes_the_launch(agent: Life) -> None:
    mourn(agent.agent, None, EngineEndedError("the engine ended"))
    assert [one.open for one in written(agent).boots] == [True, False]


def test_whatever_calls_a_person_lets_the_next_launch_begin_at_zero(agent: Life) -> None:
    mourn(agent.agent, None, NeedsPersonError("reboot this node"))
    assert written(agent).boots == ()


def test_nothing_is_written_where_nothing_has_changed(agent: Life) -> None:
    agent.agent.record(lambda boots: boots)
    hands = agent.agent.hands
    assert isinstance(hands, MemoryHands)
    assert BOOTS_FILE not in hands.written
