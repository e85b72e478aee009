"""The table of flags and its rules against real vLLM's own parser, one process for all lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.bed.engine_parser import TABLE, ask
from tests.bed.flag_lines import lines

from sparkd.launch.plan import Node
from sparkd.launch.planner import make_plan
from sparkd.lint import flag_words, rules, words
from sparkd.lint.launch import Launch
from sparkd.recipes import load
from sparkd.settings import Settings

RECIPES = Path("config/recipes")
ON_THE_WORDS = {"json", "flag-value", "flag-misprint", "flag-unknown", "flag-choice", "misnamed-flag"}
SEED, COUNT = 20260, 1000


Line = tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    table: str
    generated: list[tuple[Line, str]]
    shipped: list[tuple[str, str]]
    """Each rank of a recipe, and what the parser says to its words."""


@pytest.fixture(scope="module")
def asked() -> Asked:
    made, ranks = [*lines(SEED, COUNT)], [*_ranks()]
    answers = ask([*made, *(line for _, line in ranks)])
    generated = zip(made, answers.refusals[:COUNT], strict=True)
    shipped = zip((name for name, _ in ranks), answers.refusals[COUNT:], strict=True)
    return Asked(answers.table, [*generated], [*shipped])


def test_the_table_is_what_the_parser_says(asked: Asked) -> None:
    assert asked.table == TABLE.read_text(), "run `make flags`"


def test_the_rules_agree_with_the_parser_on_good_and_bad_lines(asked: Asked) -> None:
    refused = sum(bool(why) for _, why in asked.generated)
    assert COUNT // 3 < refused < COUNT * 2 // 3
    assert [(line, why, seen) for line, why in asked.generated if bool(seen := _seen(line)) != bool(why)] == []


def test_the_parser_takes_every_rank_of_every_shipped_recipe_of_upstreams_flags(asked: Asked) -> None:
    assert len(asked.shipped) > 15
    assert [(rank, why) for rank, why in asked.shipped if why] == []


def _seen(line: Line) -> list[str]:
    argv = ("vllm", *line)
    found = rules.issues(Launch(flags=words.flags(argv), given=flag_words.given(argv)))
    return [one.reason for one in found if one.rule in ON_THE_WORDS]


def _ranks() -> Iterator[tuple[str, Line]]:
    for file in sorted(RECIPES.glob("*.yaml")):
        recipe = load.load(file.stem, [RECIPES]).recipe.model_copy(update={"executor": "mp"})
        for rank in range(recipe.nodes.min) if not recipe.flags.extra else ():
            node = Node(rank, f"10.0.0.{rank + 1}", "10.0.0.1", recipe.nodes.min, "eth1", ("mlx5_0",))
            argv = make_plan(recipe, Settings(), node).argv
            model = argv.index("--served-model-name") - 1
            yield f"{file.stem}, rank {rank}", ("serve", *argv[model:])
