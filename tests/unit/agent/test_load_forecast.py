"""A load is expected to take as long as the last one of its plan, or as its recipe says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest
from tests.unit.followers import LOADING, following
from tests.unit.nodes import Node, report, until
from tests.unit.verdicts import present

from sparkd.agent.actions import history as store
from sparkd.agent.daemon.history import expected_load
from sparkd.base.state.facts import Facts
from sparkd.base.state.file import FOLDER
from sparkd.base.state.history import Launch, last_load
from sparkd.base.status.figure_texts import load_seconds_left
from sparkd.base.status.model import Phase
from sparkd.base.vllm.args import JsonValue


def test_a_load_is_expected_to_take_as_long_as_the_last_one_which_is_kept(worker: AgentUnderTest, head: Node) -> None:
    agent = worker.agent
    Tree(Path(agent.host.files.root)).folder(FOLDER)
    for number, (plan, seconds) in enumerate([("d", 77.4), ("other", 9.0), ("d", None)]):
        row = Launch(f"{number}", f"2026-01-0{number + 1}", 1, plan, agent.plan.recipe, Facts({}, {}, {}))
        store.write(agent.host.files, replace(row, load_seconds=seconds))
    agent.launch_row.recall(None)
    agent.launch_row.begin()
    with following(worker, LOADING):
        until(lambda: worker.report.engine.expected_seconds == 77)
        seconds_left = present(load_seconds_left(worker.report.engine, datetime.now(UTC)))
        assert 60 < seconds_left <= 77
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: worker.report.phase is Phase.SERVING)
        until(lambda: last_load(store.read(agent.host.files)) is not None)
    load_seconds = present(last_load(store.read(agent.host.files)))
    assert load_seconds < 60


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (480, (480, "recipe")),
        (0.5, (0.5, "recipe")),
        *((figure, (None, "")) for figure in ("8 min", 0, 1e30, None)),
    ],
)
def test_the_first_load_of_a_plan_is_expected_to_take_as_long_as_its_recipe_says(
    worker: AgentUnderTest, figure: JsonValue, expected: tuple[float | None, str]
) -> None:
    context = worker.agent.context
    recipe = context.recipe.model_copy(update={"expect": {"cold_start_seconds": figure}})
    assert expected_load(replace(worker.agent, context=replace(context, recipe=recipe))) == expected


def test_a_load_says_how_large_the_kv_cache_is_once_the_engine_has_logged_it(worker: AgentUnderTest) -> None:
    sized = "(EngineCore pid=9) INFO 01-01 00:00:00 [k.py:1] GPU KV cache size: 524,288 tokens"
    with following(worker, LOADING, sized):
        until(lambda: worker.report.engine.kv_cache_tokens == 524_288)
        until(lambda: worker.report.message.startswith("warming up, KV cache 524,288 tokens"))
