"""How the machine ended becomes the reason of the agent that it killed."""

from sparkd.base.lib.errors import Cause
from sparkd.base.state.launch_history import KILLED, End, LaunchHistory, MachineEnd

KILLED_END = End(KILLED, at="2026-09-21T14:00:00.000+00:00", cause=Cause.AGENT_KILLED)


def last_exit_after(
    kind: str, last: End | None = KILLED_END, booted_at: str = "2026-09-21T14:13:20.000+00:00"
) -> End | None:
    """The last exit of an agent, once it is known how its machine ended."""
    launches = LaunchHistory(last_exit=last)
    return launches.record_machine_end(MachineEnd("now", kind, "evidence", "at"), booted_at).last_exit


def test_an_agent_that_ended_with_its_machine_gets_the_machines_end_as_its_reason() -> None:
    end = last_exit_after("power-lost")
    assert end is not None
    assert str(end) == "the machine ended while the agent ran: power-lost: evidence"
    assert end.cause == Cause.AGENT_KILLED
    assert end.hint == "journalctl -b -1 -e"
    assert LaunchHistory(last_exit=end).last_cause == end, "a message to people has it"


def test_other_exits_of_an_agent_keep_their_reason() -> None:
    stopped = End("stop requested", code=0)
    assert last_exit_after("ordered") == KILLED_END
    assert last_exit_after("power-lost", stopped) == stopped
    assert last_exit_after("power-lost", None) is None
    earlier = "2026-09-21T13:59:59.000+00:00"
    assert last_exit_after("power-lost", booted_at=earlier) == KILLED_END, (
        "an agent of this boot, that launched nothing"
    )
