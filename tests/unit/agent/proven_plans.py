"""A plan that serves until it is known good."""

from tests.unit.cluster_nodes import AgentUnderTest, MemoryActions

from sparkd.base.state import known_good
from sparkd.base.state.known_good import Entry


def serve(node: AgentUnderTest) -> None:
    node.agent.proving.begin()
    node.agent.proving.tick()


def kept_entries(node: AgentUnderTest) -> tuple[Entry, ...]:
    assert isinstance(node.agent.actions, MemoryActions)
    text = node.agent.actions.written.get(known_good.FILE.name, "")
    return known_good.FILE.decode(text.encode()).known_good if text else ()
