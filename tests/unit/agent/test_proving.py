"""A plan that has served is kept as known good; a failed start logs what differs from it."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import (
    AgentUnderTest,
    FullDisk,
    MemoryActions,
    addresses,
    agent_under_test,
    alone,
    settings,
    written,
)
from tests.unit.known_good_entries import known_good_entry
from tests.unit.nodes import until

from sparkd.agent.daemon.agreed import MOST_LINES
from sparkd.agent.daemon.proving import AGAIN_SECONDS, ProvingPeriod
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.cluster import membership
from sparkd.base.config.settings import Supervise
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import BlockedError, EngineEndedError, PeerLostError, SparkdError
from sparkd.base.plan.model import Cache
from sparkd.base.state import known_good, launch_history
from sparkd.base.state.facts import Facts, node_values
from sparkd.base.state.known_good import Entry, KnownGood
from sparkd.base.state.launch_history import LaunchHistory
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch, make_rollback

ENDED = EngineEndedError("the engine ended")


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    """A head that is about to serve, and for which no time of service is too short."""
    at_once = Supervise.model_construct(peer_timeout_seconds=20, proven_seconds=0)
    configured = alone().model_copy(update={"supervise": at_once})
    with agent_under_test(tree, 0, configured) as node:
        node.set_plan("agreed", **dict(node.agent.plan.shared), **{"image.identity": "i", "weights.w": "5 bytes"})
        node.agent.reporter.update(versions={"kernel": "6.17", "driver": "580"})
        yield node


def kept_entries(node: AgentUnderTest) -> tuple[Entry, ...]:
    assert isinstance(node.agent.actions, MemoryActions)
    text = node.agent.actions.written.get(known_good.FILE.name, "")
    return known_good.FILE.decode(text.encode()).known_good if text else ()


def write_known_good(node: AgentUnderTest, *known: Entry) -> None:
    Tree(Path(node.agent.host.files.root)).file(known_good.FILE.path, known_good.FILE.encode(KnownGood(known)))


def serve(node: AgentUnderTest) -> None:
    node.agent.proving.begin()
    node.agent.proving.tick()


def differences_logged(node: AgentUnderTest) -> list[str]:
    return [line for line in node.events.lines if line.startswith("known_good.")]


def images_logged(node: AgentUnderTest) -> list[str]:
    return [line for line in node.events.lines if line.startswith("known_good.image.")]


def known_good_with(node: AgentUnderTest, **values: str) -> Entry:
    """The entry that this plan leaves as known good, with other values; an empty one is removed."""
    proving = ProvingPeriod(node.agent, node.agent.agreed, node.agent.switching)
    proving.begin()
    proving.tick()
    (entry,) = kept_entries(node)
    node.events.lines.clear()
    merged = {**entry.facts.values, **values}
    return replace(entry, facts=replace(entry.facts, values={name: text for name, text in merged.items() if text}))


def test_a_good_start_records_the_caches_that_have_files(started: AgentUnderTest) -> None:
    plan = replace(started.agent.plan, caches=(Cache("vllm", "/a"), Cache("triton", "/b"), Cache("x", "/c")))
    agent = started.remake(context=replace(started.agent.context, plan=plan))
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:1234"))
    files = Tree(Path(agent.host.files.root))
    files.file("/var/lib/sparkd/cache/1234/vllm/kernel.so")
    files.folder("/var/lib/sparkd/cache/1234/triton")
    agent.proving.begin()
    assert written(agent.actions, launch_history.FILE).good_caches == ("vllm",)


@pytest.mark.parametrize(("image", "known"), [("i", ("triton",)), ("another", ())])
def test_caches_that_cannot_be_listed_end_no_engine_and_keep_what_is_known_of_the_image(
    started: AgentUnderTest, image: str, known: tuple[str, ...]
) -> None:
    plan = replace(started.agent.plan, caches=(Cache("vllm", "/a"),))
    agent = started.remake(context=replace(started.agent.context, plan=plan))
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:1234"))
    files = Tree(Path(agent.host.files.root))
    files.link("/var/lib/sparkd/cache/1234/vllm", "vllm")
    facts = {"image.identity": "i", "kernel": "6.17"}
    before = LaunchHistory(good={"image.identity": image}, good_caches=("triton",), tried=facts)
    files.file(launch_history.FILE.path, launch_history.FILE.encode(before))
    agent.proving.begin()
    after = written(agent.actions, launch_history.FILE)
    assert (after.good, after.good_caches) == (facts, known)


def fail_start(node: AgentUnderTest, earlier: dict[str, str], error: SparkdError = ENDED) -> list[str]:
    """Let a start fail after a good one that had the values `earlier`. Returns the journal's lines on what differs."""
    write_known_good(node, known_good_with(node, **earlier))
    shutdown_on_error(node.agent, None, error)
    return differences_logged(node)


def test_a_plan_that_served_long_enough_is_kept_with_its_facts(started: AgentUnderTest) -> None:
    agent = started.agent
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:i"))
    serve(started)
    (entry,) = kept_entries(started)
    assert (entry.plan_digest, entry.agreement_digest, entry.image_id) == (agent.plan.digest, "agreed", "sha256:i")
    assert entry.facts.values["weights.w"] == "5 bytes"
    assert (entry.facts.versions["driver"], entry.facts.boot["boot.memory"]) == ("580", "120.0 GiB")
    rollback = make_rollback(entry, "f", "")
    assert rollback is not None
    assert rollback.to is not None
    assert (rollback.to.recipe, rollback.to.engine) == (agent.context.recipe, agent.settings.engine)
    assert agent.proving.proven


@pytest.mark.parametrize(
    ("outcome", "events"),
    [
        (
            (("sparkd/known-good:1", True), ("sparkd-kept-2", False)),
            ["known_good.image.kept name=sparkd/known-good:1", "known_good.image.released name=sparkd-kept-2"],
        ),
        (DockerError("no space"), ["known_good.image.failed reason=no space hint=the next start that proves"]),
    ],
)
def test_the_images_of_known_good_plans_are_kept_beside_the_loop(
    started: AgentUnderTest, outcome: tuple[tuple[str, bool], ...] | DockerError, events: list[str]
) -> None:
    class Keeping(MemoryActions):
        def keep_images(
            self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]
        ) -> Iterator[tuple[str, bool]]:
            own = ("sha256:i",)
            assert (named, pinned, before, threading.current_thread().name) == (own, own, (), "kept-images")
            if isinstance(outcome, DockerError):
                raise outcome
            yield from outcome

    agent = started.agent
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:i"))
    started.remake(actions=Keeping(agent.host, agent.loop, "i"))
    started.set_plan("agreed", **dict(agent.plan.shared))
    serve(started)
    until(lambda: len(images_logged(started)) >= len(events))
    for line, text in zip(images_logged(started), events, strict=True):
        assert line.startswith(text)


@pytest.mark.parametrize(
    ("written", "before"),
    [
        (lambda known: known_good.FILE.encode(KnownGood(known)), {"sha256:old", "sha256:i"}),
        (lambda known: known_good.FILE.encode(KnownGood(known)).replace("sha256:old", "sha256:x;y"), set()),
        (lambda _known: "rubbish", set()),
        (None, set()),
    ],
    ids=["what is over is released", "one bad entry", "unreadable", "lost"],
)
def test_images_are_released_by_what_was_read_alone(
    started: AgentUnderTest, written: Callable[[tuple[Entry, ...]], str] | None, before: set[str]
) -> None:
    calls: list[set[str]] = []

    class Keeping(MemoryActions):
        def keep_images(
            self, named: Sequence[str], pinned: Sequence[str], before: Collection[str]
        ) -> Iterator[tuple[str, bool]]:
            calls.append(set(before))
            yield from ()

    agent = started.agent
    agent.reporter.update(engine=replace(agent.reporter.report.engine, image="sha256:new"))
    started.remake(actions=Keeping(agent.host, agent.loop, "i"))
    started.set_plan("agreed", **dict(agent.plan.shared))
    if written:
        known = (known_good_entry(image_id="sha256:i"), known_good_entry("d2", image_id="sha256:old"))
        Tree(Path(agent.host.files.root)).file(known_good.FILE.path, written(known))
    serve(started)
    until(lambda: calls)
    assert calls == [before]


def test_a_plan_that_has_not_served_long_is_not_kept(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 0, settings(addresses(2), port)) as node:
        serve(node)
        assert (kept_entries(node), node.agent.proving.proven) == ((), False)


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


@pytest.mark.parametrize("is_full", [True, False], ids=["a full disk", "an unreadable file"])
def test_an_entry_that_could_not_be_kept_is_kept_a_minute_later(started: AgentUnderTest, is_full: bool) -> None:
    agreement, now = started.agent.agreed.agreement, 0.0
    actions = FullDisk(started.agent.host, started.agent.loop, "full")
    agent = started.remake(actions=actions)
    agent.agreed.keep(agreement)
    actions.is_full = is_full
    unreadable = Tree(Path(agent.host.files.root)).folder("/else" if is_full else known_good.FILE.path)
    proving = ProvingPeriod(agent, agent.agreed, agent.switching, lambda: now)
    proving.begin()
    proving.tick()
    assert (kept_entries(started), proving.proven) == ((), True)
    actions.is_full = False
    unreadable.rmdir()
    now = AGAIN_SECONDS - 1
    proving.tick()
    assert kept_entries(started) == ()
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1


@pytest.mark.parametrize(("end", "count"), [("", 1), ("2999-01-01T00:00:00+00:00", 0)])
def test_a_plan_with_an_end_does_not_become_known_good(started: AgentUnderTest, end: str, count: int) -> None:
    chosen = Chosen(started.agent.context.recipe, started.agent.context.settings.engine, until=end)
    switch = Switch("f", Stage.IN_FORCE, chosen, (), 0, 60, "1")
    agreement = started.agent.agreed.agreement
    started.remake(context=replace(started.agent.context, switch=switch)).agreed.keep(agreement)
    serve(started)
    assert (len(kept_entries(started)), started.agent.proving.proven) == (count, True)


def test_a_plan_that_loses_its_end_in_service_becomes_known_good(started: AgentUnderTest) -> None:
    """As that of `sparkd use --image`, which has an end until it is measured."""
    agreement, now = started.agent.agreed.agreement, 0.0
    chosen = Chosen(started.agent.context.recipe, started.agent.context.settings.engine, until="2999-01-01T00:00:00Z")
    switch = Switch("f", Stage.IN_FORCE, chosen, (), 0, 60, "1")
    agent = started.remake(context=replace(started.agent.context, switch=switch))
    agent.agreed.keep(agreement)
    proving = ProvingPeriod(agent, agent.agreed, agent.switching, lambda: now)
    proving.begin()
    proving.tick()
    agent.switching.switch = replace(switch, to=replace(chosen, until=""))
    assert kept_entries(started) == ()
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1


def test_a_proven_plan_that_could_not_be_kept_is_kept_after_a_reload(started: AgentUnderTest) -> None:
    now = 0.0
    proving = ProvingPeriod(started.agent, started.agent.agreed, started.agent.switching, lambda: now)
    proving.begin(again=True)
    proving.tick()
    assert (kept_entries(started), proving.proven) == ((), True)
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1


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


def test_a_rollback_in_force_is_logged_and_one_that_is_over_removed(started: AgentUnderTest, tree: Tree) -> None:
    agent = started.agent
    root = Tree(Path(agent.host.files.root))
    agent.switching.settle()
    assert "rollback" not in " ".join(started.events.lines)
    entry = known_good_with(started)
    rollback = make_rollback(entry, "", "")
    assert rollback is not None
    started.remake(context=replace(agent.context, switch=rollback)).switching.settle()
    assert started.events.lines[-1].startswith(f"rollback.plan.applied plan={entry.plan_digest[:12]} recipe=tiny-cpu ")
    agent = started.remake(context=agent.context)
    root.file(FILE.path, FILE.encode(rollback))
    agent.switching.settle()
    assert FILE.read(agent.host.files) is None
    assert started.events.lines[-1].startswith("rollback.plan.removed reason=the configuration has changed")
    root.file(FILE.path, "rubbish")
    agent.switching.settle()
    assert "can't be read" in started.events.lines[-1]


def test_a_rollback_that_is_chosen_while_an_agent_starts_is_for_the_next_one(started: AgentUnderTest) -> None:
    agent = started.agent
    entry = known_good_with(started)
    rollback = make_rollback(entry, membership.fingerprint_config(agent.context.configured, agent.host), "")
    assert rollback is not None
    Tree(Path(agent.host.files.root)).file(FILE.path, FILE.encode(rollback))
    agent.switching.settle()
    assert FILE.read(agent.host.files) == rollback
    assert "rollback" not in " ".join(started.events.lines)


def test_an_entry_without_facts_is_still_compared(started: AgentUnderTest) -> None:
    write_known_good(started, replace(known_good_with(started), facts=Facts({}, {}, {})))
    shutdown_on_error(started.agent, None, ENDED)
    assert len(differences_logged(started)) == MOST_LINES + 1
