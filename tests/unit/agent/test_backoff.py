"""A plan whose launches have failed too often is given up, and what a person gets to read then."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings, written

from sparkd.agent.daemon.context import Agent
from sparkd.base.lib.errors import NeedsPersonError
from sparkd.base.state.launch_history import BACKOFF_SECONDS, FILE, End, LaunchHistory


@pytest.fixture
def worker(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    with agent_under_test(tree, 1, settings(addresses(2), port)) as worker:
        yield worker


def given_up(agent: Agent) -> LaunchHistory:
    return LaunchHistory({agent.plan.digest: len(BACKOFF_SECONDS)})


def write_history(agent: Agent, history: LaunchHistory) -> None:
    Tree(Path(agent.host.files.root)).file(FILE.path, FILE.encode(history))


FIX_CAUSE = "fix the cause (sudo sparkd logs --since 1d --level warning), then: "


@pytest.mark.parametrize(
    ("hints", "hint"),
    [
        (("use another image",), "use another image, then: sudo systemctl start sparkd-worker"),
        (("sparkd starts it again", "lower max-num-seqs"), "lower max-num-seqs, then: "),
        (("lower max-num-seqs", "sparkd starts it again"), FIX_CAUSE),
        (("its log: sudo sparkd logs --since 1d --engine",), FIX_CAUSE),
        (("nothing is to be done: sparkd starts it again",), FIX_CAUSE),
        (("",), FIX_CAUSE),
        ((), FIX_CAUSE),
    ],
)
def test_a_plan_that_is_given_up_has_the_remedy_of_its_last_failure(
    worker: AgentUnderTest, hints: tuple[str, ...], hint: str
) -> None:
    agent = worker.agent
    history = given_up(agent)
    for text in hints:
        history = history.record_failure(agent.plan.digest, End("the engine ended: boom", 13, text))
    write_history(agent, history)
    blocked = "40.0 GiB available, 96.0 GiB needed (exit 10)"  # by the preflight after it, which launches nothing
    agent.reporter.update(last_cause=blocked)
    with pytest.raises(NeedsPersonError) as raised:
        agent.backoff.wait()
    assert raised.value.hint.startswith(hint)
    assert raised.value.hint.endswith("sudo systemctl start sparkd-worker")
    assert blocked not in raised.value.reason
    assert written(agent.actions, FILE).wait_seconds(agent.plan.backoff_key) == 0, "a start by hand begins at zero"
    assert ("the last: the engine ended: boom" in raised.value.reason) is bool(hints)


def test_failures_with_the_current_image_hold_up_no_rollback_to_an_earlier_one(worker: AgentUnderTest) -> None:
    agent = worker.agent
    write_history(agent, given_up(agent))
    context = replace(agent.context, plan=replace(agent.plan, image_id="sha256:i"))
    assert not worker.remake(context=context).backoff.wait()
