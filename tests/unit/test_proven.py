"""In the life of an agent: a plan that has served is kept, and the journal of a failed start tells what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, MemoryHands, addresses, alone, free_port, life, settings

from sparkd import proven, roles
from sparkd.ending import mourn
from sparkd.errors import BlockedError, EngineEndedError, PeerLostError, SparkdError
from sparkd.known_good import history, rollback
from sparkd.known_good.facts import Facts, own
from sparkd.known_good.history import Entry
from sparkd.launch.ledger import COOLING_SECONDS, Ledger, dump
from sparkd.service import Service
from sparkd.settings.model import Supervise
from sparkd.steps import cool


@pytest.fixture
def started(tree: Tree) -> Iterator[Life]:
    """A head that is about to serve, and for which no time of service is too short."""
    at_once = Supervise.model_construct(peer_timeout_seconds=20, proven_seconds=0)
    configured = alone().model_copy(update={"supervise": at_once})
    with life(tree, 0, configured) as made:
        made.surveyed("agreed", **dict(made.agent.plan.shared), **{"image.identity": "i", "weights.w": "5 bytes"})
        made.agent.reporter.update(versions={"kernel": "6.17", "driver": "580"})
        yield made


def kept(made: Life) -> tuple[Entry, ...]:
    assert isinstance(made.agent.hands, MemoryHands)
    return history.parse(made.agent.hands.written.get(history.FILE, ""))


def on_disk(made: Life, *known: Entry) -> None:
    Tree(Path(made.agent.host.files.root)).file(history.PATH, history.dump(known))


def told(made: Life) -> list[str]:
    return [line for line in made.told.lines if line.startswith("known-good.")]


def changed(made: Life, **values: str) -> Entry:
    """What is kept, with other values of then."""
    Service(made.agent).goes_on()
    (entry,) = kept(made)
    made.agent.proven = False
    made.told.lines.clear()
    then = {**entry.facts.values, **values}
    return replace(entry, facts=replace(entry.facts, values={name: text for name, text in then.items() if text}))


def test_a_plan_that_has_served_for_long_enough_is_kept_with_all_that_it_was_made_of(started: Life) -> None:
    agent = started.agent
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:i"))
    Service(agent).goes_on()
    (entry,) = kept(started)
    assert (entry.plan, entry.agreement, entry.image_id) == (agent.plan.digest, "agreed", "sha256:i")
    assert entry.facts.values["weights.w"] == "5 bytes"
    assert (entry.facts.versions["driver"], entry.facts.boot["boot.memory"]) == ("580", "120.0 GiB")
    made = rollback.to(entry, "f", "")
    assert made is not None
    assert (made.recipe, made.engine) == (agent.context.recipe, agent.settings.engine)
    assert agent.proven


def test_a_plan_that_has_not_served_long_is_not_kept(tree: Tree) -> None:
    with life(tree, 0, settings(addresses(2), free_port())) as made:
        Service(made.agent).goes_on()
        assert (kept(made), made.agent.proven) == ((), False)


def test_the_journals_last_lines_name_what_differs(started: Life) -> None:
    on_disk(started, changed(started, **{"args.dtype": "half", "image.identity": "j", "args.max-model-len": ""}))
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    flag, length, image = started.told.lines[-3:]
    assert "life.failed" in started.told.lines[0]
    assert flag.startswith("known-good.value.differs name=args.dtype then=half now=float32 hint=")
    assert length.startswith("known-good.value.differs name=args.max-model-len then=not set now=")
    assert image.startswith("known-good.value.differs name=image.identity then=j now=i")
    assert "sparkd rollback" in image


def test_a_long_list_ends_with_a_count(started: Life) -> None:
    on_disk(started, changed(started, **{f"env.V{number:02}": "x" for number in range(20)}))
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    assert len(told(started)) == proven.MOST_LINES + 1
    assert started.told.lines[-1].startswith("known-good.more.differ count=8 hint=sparkd diff")


def test_where_nothing_differs_one_line_says_so(started: Life) -> None:
    on_disk(started, changed(started))
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    assert [line.partition(" ")[0] for line in told(started)] == ["known-good.nothing.differs"]


def test_a_start_that_preflight_blocks_is_compared_by_its_plan_alone(started: Life) -> None:
    on_disk(started, changed(started, **{"args.dtype": "half"}))
    started.surveyed("")
    mourn(started.agent, None, BlockedError("plan-lint: no"))
    (line,) = told(started)
    assert "name=args.dtype" in line


@pytest.mark.parametrize(
    ("error", "has_proven"), [(PeerLostError("rank 1 is gone"), False), (EngineEndedError("it ended"), True)]
)
def test_neither_another_nodes_end_nor_a_later_one_is_a_failed_start(
    started: Life, error: SparkdError, has_proven: bool
) -> None:
    on_disk(started, changed(started, **{"args.dtype": "half"}))
    started.agent.proven = has_proven
    mourn(started.agent, None, error)
    assert told(started) == []


def test_without_a_known_good_start_nothing_is_said(started: Life) -> None:
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    assert told(started) == []


def test_what_a_node_alone_has_is_compared_too(started: Life) -> None:
    on_disk(started, changed(started, **{"node.model_folder": "/elsewhere/tiny"}))
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    (line,) = told(started)
    assert "name=node.model_folder then=/elsewhere/tiny now=/srv/models/tiny" in line
    assert own(started.agent.plan)["node.model_folder"] == "/srv/models/tiny"


def test_a_rollback_in_force_is_told_and_one_that_is_over_removed(started: Life, tree: Tree) -> None:
    agent = started.agent
    root = Tree(Path(agent.host.files.root))
    proven.settle_rollback(agent)
    assert "rollback" not in " ".join(started.told.lines)
    entry = changed(started)
    back = rollback.to(entry, "", "")
    assert back is not None
    agent.context = replace(agent.context, rollback=back)
    proven.settle_rollback(agent)
    assert started.told.lines[-1].startswith(f"rollback.plan.chosen plan={entry.plan[:12]} recipe=tiny-cpu ")
    agent.context = replace(agent.context, rollback=None)
    root.file(rollback.PATH, rollback.dump(back))
    proven.settle_rollback(agent)
    assert isinstance(agent.hands, MemoryHands)
    assert agent.hands.written[rollback.FILE] == ""
    assert started.told.lines[-1].startswith("rollback.plan.ended reason=the configuration has changed")
    root.file(rollback.PATH, "rubbish")
    proven.settle_rollback(agent)
    assert "can't be read" in started.told.lines[-1]


def test_a_rollback_that_is_chosen_while_a_life_begins_is_the_next_ones(started: Life) -> None:
    agent = started.agent
    back = rollback.to(changed(started), roles.fingerprint(agent.context.configured, agent.host), "")
    assert back is not None
    Tree(Path(agent.host.files.root)).file(rollback.PATH, rollback.dump(back))
    proven.settle_rollback(agent)
    assert isinstance(agent.hands, MemoryHands)
    assert rollback.FILE not in agent.hands.written
    assert "rollback" not in " ".join(started.told.lines)


def test_failures_with_the_image_of_now_hold_up_no_rollback_to_that_of_then(started: Life) -> None:
    agent = started.agent
    failures = Ledger({agent.plan.digest: len(COOLING_SECONDS)})
    Tree(Path(agent.host.files.root)).file("/var/lib/sparkd/launches.json", dump(failures))
    agent.context = replace(agent.context, plan=replace(agent.plan, image_id="sha256:i"))
    assert not cool(agent)


def test_an_entry_without_facts_is_compared_all_the_same(started: Life) -> None:
    on_disk(started, replace(changed(started), facts=Facts({}, {}, {})))
    mourn(started.agent, None, EngineEndedError("the engine ended"))
    assert len(told(started)) == proven.MOST_LINES + 1
