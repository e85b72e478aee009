"""A failed start logs what differs from the last good one."""

from pathlib import Path

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.proven_plans import kept_entries, serve
from tests.unit.cluster_nodes import AgentUnderTest

from sparkd.agent.daemon.agreed import MOST_LINES
from sparkd.agent.daemon.proving import ProvingPeriod
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.errors import BlockedError, EngineEndedError, PeerLostError, SparkdError
from sparkd.base.state import known_good
from sparkd.base.state.facts import Facts, node_values
from sparkd.base.state.known_good import Entry, KnownGood

ENDED = EngineEndedError("the engine ended")


def write_known_good(node: AgentUnderTest, *known: Entry) -> None:
    Tree(Path(node.agent.host.files.root)).file(known_good.FILE.path, known_good.FILE.encode(KnownGood(known)))


def differences_logged(node: AgentUnderTest) -> list[str]:
    return [line for line in node.events.lines if line.startswith("known_good.")]


def known_good_with(node: AgentUnderTest, **values: str) -> Entry:
    """The entry that this plan leaves as known good, with other values; an empty one is removed."""
    proving = ProvingPeriod(node.agent, node.agent.agreed, node.agent.switching)
    proving.begin()
    proving.tick()
    (entry,) = kept_entries(node)
    node.events.lines.clear()
    merged = {**entry.facts.values, **values}
    return replace(entry, facts=replace(entry.facts, values={name: text for name, text in merged.items() if text}))


def fail_start(node: AgentUnderTest, earlier: dict[str, str], error: SparkdError = ENDED) -> list[str]:
    """Let a start fail after a good one that had the values `earlier`. Returns the journal's lines on what differs."""
    write_known_good(node, known_good_with(node, **earlier))
    shutdown_on_error(node.agent, None, error)
    return differences_logged(node)


def test_the_journals_last_lines_after_a_failed_start_name_what_differs(started: AgentUnderTest) -> None:
    fail_start(started, {"args.dtype": "half", "image.identity": "j", "args.max-model-len": ""})
    flag, length, image = started.events.lines[-3:]
    assert started.events.lines[-4].startswith("agent.run.failed")
    assert flag.startswith("known_good.value.changed name=args.dtype then=half now=float32 hint=")
    assert length.startswith("known_good.value.changed name=args.max-model-len then=not set now=")
    assert image.startswith("known_good.value.changed name=image.identity then=j now=i")
    assert "sparkd rollback" in image


def test_a_long_list_of_differences_ends_with_a_count(started: AgentUnderTest) -> None:
    assert len(fail_start(started, {f"env.V{number:02}": "x" for number in range(20)})) == MOST_LINES + 1
    assert started.events.lines[-1].startswith("known_good.values.omitted count=8 hint=sudo sparkd diff")


def test_a_failed_start_without_a_difference_is_one_line(started: AgentUnderTest) -> None:
    assert [line.partition(" ")[0] for line in fail_start(started, {})] == ["known_good.values.unchanged"]


def test_a_start_that_preflight_blocks_is_compared_by_its_plan_alone(started: AgentUnderTest) -> None:
    write_known_good(started, known_good_with(started, **{"args.dtype": "half"}))
    started.set_plan("")
    shutdown_on_error(started.agent, None, BlockedError("plan-lint: no"))
    (line,) = differences_logged(started)
    assert "name=args.dtype" in line


def test_the_end_of_another_node_or_of_a_proven_plan_is_no_failed_start(started: AgentUnderTest) -> None:
    assert fail_start(started, {"args.dtype": "half"}, PeerLostError("rank 1 is gone")) == []
    serve(started)
    started.events.lines.clear()
    shutdown_on_error(started.agent, None, ENDED)
    assert differences_logged(started) == []


def test_without_a_known_good_start_nothing_is_logged(started: AgentUnderTest) -> None:
    shutdown_on_error(started.agent, None, ENDED)
    assert differences_logged(started) == []


def test_values_of_this_node_are_compared_too(started: AgentUnderTest) -> None:
    (line,) = fail_start(started, {"node.model_folder": "/elsewhere/tiny"})
    assert "name=node.model_folder then=/elsewhere/tiny now=/srv/models/tiny" in line
    assert node_values(started.agent.plan)["node.model_folder"] == "/srv/models/tiny"


def test_an_entry_without_facts_is_still_compared(started: AgentUnderTest) -> None:
    write_known_good(started, replace(known_good_with(started), facts=Facts({}, {}, {})))
    shutdown_on_error(started.agent, None, ENDED)
    assert len(differences_logged(started)) == MOST_LINES + 1
