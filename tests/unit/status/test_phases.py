"""The table of phases: what a run needs of it, and what the other nodes read from it."""

from itertools import pairwise

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone
from tests.unit.nodes import report

from sparkd.base.status.model import Phase
from sparkd.base.status.phases import PHASES, answers_requests, find_loss, may_follow

WAITS = (Phase.COOLING, Phase.AWAITING_DOCKER, Phase.AWAITING_PEERS)
UP_TO_LAUNCH = (Phase.PREFLIGHT, *WAITS, Phase.LAUNCHING)
RUN = (*UP_TO_LAUNCH, Phase.LOADING, Phase.SERVING, Phase.DEGRADED, Phase.SERVING)


def test_each_phase_has_a_rule() -> None:
    assert set(PHASES) == set(Phase)


@pytest.mark.parametrize("left_out", [(), *((phase,) for phase in WAITS), WAITS])
def test_a_run_may_leave_out_what_it_need_not_wait_for(left_out: tuple[Phase, ...]) -> None:
    run = [phase for phase in RUN if phase not in left_out]
    assert all(may_follow(before, after) for before, after in pairwise(run))


OVER = (Phase.STOPPING, Phase.STOPPED, Phase.FAILED)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in OVER])
def test_a_run_may_stop_or_fail_in_every_phase(phase: Phase) -> None:
    assert may_follow(phase, Phase.STOPPING)
    assert may_follow(phase, Phase.FAILED)


@pytest.mark.parametrize("end", [Phase.STOPPED, Phase.FAILED])
def test_nothing_follows_the_end_of_a_run(end: Phase) -> None:
    assert [phase for phase in Phase if may_follow(end, phase)] == [end]


@pytest.mark.parametrize("phase", [phase for phase in Phase if PHASES[phase].has_rank])
def test_a_rank_that_runs_is_never_blocked_and_launches_no_second_one(phase: Phase) -> None:
    assert not any(may_follow(phase, ahead) for ahead in (*UP_TO_LAUNCH, Phase.BLOCKED))
    assert not PHASES[phase].ahead


@pytest.mark.parametrize("phase", Phase)
def test_a_node_that_drains_serves_and_is_not_lost(phase: Phase) -> None:
    draining = report(0, phase=phase, draining=True)
    assert find_loss(draining) is None
    assert answers_requests(draining)


def test_a_node_that_is_blocked_or_ends_is_lost() -> None:
    lost = {phase for phase in Phase if find_loss(report(0, phase=phase)) is not None}
    assert lost == {Phase.BLOCKED, *OVER}


def test_a_node_answers_requests_while_it_serves() -> None:
    answering = {phase for phase in Phase if answers_requests(report(0, phase=phase))}
    assert answering == {Phase.SERVING, Phase.DEGRADED}


def test_an_agent_that_enters_an_unexpected_phase_reports_it_and_continues(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node:
        node.agent.phase.enter(Phase.LAUNCHING)
        node.agent.phase.enter(Phase.LOADING)
        assert not any("unexpected" in line for line in node.events.lines)
        node.agent.phase.enter(Phase.PREFLIGHT)
        assert node.report.phase is Phase.PREFLIGHT
    assert "agent.phase.unexpected before=loading phase=preflight" in node.events.lines[-2]
