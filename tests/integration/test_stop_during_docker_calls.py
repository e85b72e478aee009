"""A run that is to end while docker makes or starts its container: the call may end late, and leaves no container."""

import time
from collections.abc import Iterator

import pytest
from tests.integration.agent_world import World, world
from tests.integration.side_by_side import Outcomes, outcomes

from sparkd.base.status.model import Phase

CALLS = ("create", "start")
ENDS = {"SIGTERM": (0, "stop-requested"), "lost peer": (14, "peer-failed")}
"""Exit code and recorded cause, by what ends the run."""
TIMES = [pytest.param(4, 12, id="short"), pytest.param(20, 60, id="long", marks=pytest.mark.whole)]
"""How long each call takes, and for how long the node is watched after the run was to end: both in seconds."""
END_SECONDS = 60.0
Outcome = tuple[int, object, list[str], list[str]]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> Iterator[Outcomes[Outcome]]:
    with outcomes(request, end_during_call, at_once=8) as results:
        yield results


def end_during_call(call: str, end: str, hang_seconds: float, watch_seconds: float) -> Outcome:
    """Exit code, recorded cause, containers that are left, and the calls that docker has got."""
    with world(pair=True) as node:
        node.control(hang=dict.fromkeys(CALLS, hang_seconds))
        node.start_agent()
        node.lead_peer()
        node.until(lambda: call in node.control(), f"docker to be called: {call}")
        began = time.monotonic()
        assert len(node.containers()) == CALLS.index(call)
        end_run(node, end)
        time.sleep(began + watch_seconds - time.monotonic())
        containers, calls = node.containers(), node.control()
        return node.exit_code(END_SECONDS), node.last_exit.get("cause"), containers, calls


def end_run(node: World, end: str) -> None:
    if end == "SIGTERM":
        node.terminate()
    else:
        assert node.peer is not None
        node.peer.publish(phase=Phase.FAILED, message="its engine ended")


@pytest.mark.parametrize(("hang_seconds", "watch_seconds"), TIMES)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", CALLS)
def test_no_container_is_left(
    call: str,
    end: str,
    hang_seconds: float,
    watch_seconds: float,
    ended: Outcomes[Outcome],
    request: pytest.FixtureRequest,
) -> None:
    code, cause, containers, calls = ended.of(request)
    assert containers == []
    assert (code, cause) == ENDS[end]
    assert "remove" in calls, "the container came to be after the run was to end"
