"""Ten faults of a siege, and what a siege is repeated by: its list. `make siege` draws as many as there is time for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed import Bed
from tests.siege.package import renamed
from tests.siege.runner import Siege, Step, ViolationError, bursts, draw, shrink
from tests.siege.world import World

TEN = """\
burst 0 spark1 kill-agent 0
and 0.3 spark2 forged-lines 0
and 0.3 spark2 clock 3600
burst 0 spark2 kill-rank 0
and 1 spark1 garbage 0
and 1 spark1 kill-journald 0
burst 0 spark1 kill-core 0
and 0 spark2 cable-one-way 2
and 0 spark1 edit 3
and 1 spark2 power-cut 1
"""


@pytest.fixture
def world(bed: Bed, package: Path, tmp_path: Path) -> Iterator[World]:
    before = list(bed.nodes)
    made = World(bed, package, renamed(package, tmp_path))
    made.begin()
    yield made
    made.end()
    for node in [node for node in bed.nodes if node not in before]:
        bed.remove(node)


def test_the_rules_hold_under_ten_faults(world: World) -> None:
    siege = Siege(world)
    try:
        siege.run([Step.parse(line) for line in TEN.splitlines()])
    except ViolationError as error:
        pytest.fail(f"{error}\n{world.tails(100)}")
    assert siege.injected.total() == 10, siege.missed
    assert not world.persons
    worker = world.cluster.worker
    plans = [json.loads(member.node.run("sparkd", "plan", "--json").stdout) for member in world.cluster.members]
    assert plans[0]["digest"] == plans[1]["digest"]
    assert "--seed 3" in " ".join(plans[1]["argv"]), "what the head's file alone was changed to"
    assert "cluster.config.followed" in worker.node.journal(worker.unit)
    print(world.outages)


def test_a_seed_gives_one_list_which_is_read_as_it_was_written() -> None:
    steps = draw(7, 100)
    assert steps == draw(7, 100) != draw(8, 100)
    assert [Step.parse(str(step)) for step in steps] == steps
    assert [step for burst in bursts(steps) for step in burst] == steps


def test_a_list_shrinks_to_the_two_faults_that_show_it_together() -> None:
    steps = [Step(True, 0, 0, "kill-core", number) for number in range(20)]
    needed = {3, 11}
    short = shrink(steps, lambda some: needed <= {step.number for step in some}, most=60)
    assert {step.number for step in short} == needed
