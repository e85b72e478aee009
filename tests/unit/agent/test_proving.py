"""A plan that has served for long enough is kept as known good."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.proven_plans import kept_entries, serve
from tests.unit.cluster_nodes import (
    AgentUnderTest,
    FullDisk,
    addresses,
    agent_under_test,
    settings,
    until_with,
    written,
)

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.daemon.proving import AGAIN_SECONDS, ProvingPeriod
from sparkd.base.plan.model import Cache
from sparkd.base.state import known_good, launch_history
from sparkd.base.state.launch_history import LaunchHistory
from sparkd.base.state.switch import FILE, Chosen, Stage, Switch, make_rollback


def test_a_good_start_records_the_caches_that_have_files(started: AgentUnderTest) -> None:
    plan = replace(started.agent.plan, caches=(Cache("vllm", "/a"), Cache("triton", "/b"), Cache("x", "/c")))
    agent = started.remake(context=replace(started.agent.context, plan=plan))
    agent.reporter.update_engine(image="sha256:1234")
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
    agent.reporter.update_engine(image="sha256:1234")
    files = Tree(Path(agent.host.files.root))
    files.link("/var/lib/sparkd/cache/1234/vllm", "vllm")
    facts = {"image.identity": "i", "kernel": "6.17"}
    before = LaunchHistory(good={"image.identity": image}, good_caches=("triton",), tried=facts)
    files.file(launch_history.FILE.path, launch_history.FILE.encode(before))
    agent.proving.begin()
    after = written(agent.actions, launch_history.FILE)
    assert after.good == facts
    assert after.good_caches == known


def test_a_plan_that_served_long_enough_is_kept_with_its_facts(started: AgentUnderTest) -> None:
    agent = started.agent
    agent.reporter.update_engine(image="sha256:i")
    serve(started)
    (kept,) = kept_entries(started)
    assert kept.plan_digest == agent.plan.digest
    assert kept.agreement_digest == "agreed"
    assert kept.image_id == "sha256:i"
    assert kept.facts.values["weights.w"] == "5 bytes"
    assert kept.facts.versions["driver"] == "580"
    assert kept.facts.boot["boot.memory"] == "120.0 GiB"
    rollback = make_rollback(kept, "f", "")
    assert rollback is not None
    assert rollback.to is not None
    assert rollback.to.recipe == agent.context.recipe
    assert rollback.to.engine == agent.settings.engine
    assert agent.proving.proven


def test_a_plan_that_has_not_served_long_is_not_kept(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 0, settings(addresses(2), port)) as node:
        serve(node)
        assert kept_entries(node) == ()
        assert not node.agent.proving.proven


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
    assert kept_entries(started) == ()
    assert proving.proven
    actions.is_full = False
    unreadable.rmdir()
    now = AGAIN_SECONDS - 1
    proving.tick()
    assert kept_entries(started) == ()
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1


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
    endless = replace(switch, to=replace(chosen, until=""))
    assert compare_and_swap(agent.host.files, FILE, None, endless)
    until_with(lambda: agent.switching.switch == endless, started)
    assert proving.proven
    assert kept_entries(started) == ()
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1


def test_a_proven_plan_that_could_not_be_kept_is_kept_after_a_reload(started: AgentUnderTest) -> None:
    now = 0.0
    proving = ProvingPeriod(started.agent, started.agent.agreed, started.agent.switching, lambda: now)
    proving.begin(again=True)
    proving.tick()
    assert kept_entries(started) == ()
    assert proving.proven
    now = AGAIN_SECONDS
    proving.tick()
    assert len(kept_entries(started)) == 1
