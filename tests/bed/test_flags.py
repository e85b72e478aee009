"""The table of flags and its rules against real vLLM's own parser, one process for all lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.bed import release_tables
from tests.bed.engine_parser import Case, query_models, query_parser
from tests.bed.flag_lines import TABLE, lines, wrong_fields

from sparkd.base.config import Settings
from sparkd.base.plan.build import make_plan
from sparkd.base.plan.model import Node
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.vllm.command import first_values, parse_command
from sparkd.base.vllm.flag import FlagTable
from sparkd.base.vllm.lint import rules
from sparkd.base.vllm.lint.launch import Launch
from sparkd.base.vllm.lint.model import parse_limits
from sparkd.base.vllm.releases import find_release

RECIPES = Path("config/recipes")


ON_THE_WORDS = {"json", "flag-value", "flag-misprint", "flag-unknown", "flag-choice", "misnamed-flag"}
IN_JSON = {"json-field", "json-unknown"}
SEED, COUNT = 20260, 1000


Line = tuple[str, ...]


@dataclass(frozen=True)
class ParserAnswers:
    table: str
    generated: list[tuple[Line, str]]
    fields: list[tuple[Line, str]]
    """Lines that the rules find wrong."""
    shipped: list[tuple[str, str]]
    """Each rank of a recipe, and what the parser says to its words."""


@pytest.fixture(scope="module")
def parser() -> ParserAnswers:
    made, wrong, ranks = [*lines(SEED, COUNT)], [*wrong_fields()], [*_ranks()]
    answers = query_parser([*made, *wrong, *(line for _, line in ranks)])
    refusals = iter(answers.refusals)
    generated, fields = [(line, next(refusals)) for line in made], [(line, next(refusals)) for line in wrong]
    shipped = zip((name for name, _ in ranks), refusals, strict=True)
    return ParserAnswers(answers.table, generated, fields, [*shipped])


def test_the_table_is_what_the_parser_says(parser: ParserAnswers) -> None:
    """The table of this release was made from its sources alone, this one from what its wheel installs."""
    assert as_dicts(TABLE) == as_dicts(msgspec.json.decode(parser.table, type=FlagTable)), "run `make flags`"


RELEASES = release_tables.VERSIONS
IN_EVERY_RUN = RELEASES[7]
WHOLE = (RELEASES[0], RELEASES[11], *release_tables.ONLY_WHEELS, RELEASES[-1])


# The one of every run comes last: of all releases' sources the cache keeps those that were used last.
@pytest.mark.parametrize(
    "version", [*(pytest.param(version, marks=pytest.mark.whole) for version in WHOLE), IN_EVERY_RUN]
)
def test_the_table_of_a_release_is_what_its_sources_say(version: str) -> None:
    assert as_dicts(find_release(version)) == as_dicts(release_tables.query(version))


def test_the_rules_agree_with_the_parser_on_good_and_bad_lines(parser: ParserAnswers) -> None:
    refused = sum(bool(why) for _, why in parser.generated)
    assert COUNT // 3 < refused < COUNT * 2 // 3
    assert [(line, why, seen) for line, why in parser.generated if bool(seen := _seen(line)) != bool(why)] == []


def test_the_parser_refuses_every_field_that_the_rules_find_wrong(parser: ParserAnswers) -> None:
    assert len(parser.fields) > 300
    assert [line for line, why in parser.fields if not why] == []
    assert [line for line, _ in parser.fields if not _seen(line, IN_JSON)] == []


def test_the_parser_takes_every_rank_of_every_shipped_recipe_of_upstreams_flags(parser: ParserAnswers) -> None:
    assert len(parser.shipped) > 15
    assert [(rank, why) for rank, why in parser.shipped if why] == []


METHODS: dict[str, dict[str, object]] = {
    "fp8": {"activation_scheme": "dynamic"},
    "awq": {"bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "compressed-tensors": {"format": "float-quantized", "config_groups": {}},
    "modelopt": {"quant_algo": "FP8"},
}


def test_what_the_rules_say_of_a_model_is_what_vllm_says() -> None:
    """Without a GPU it has only `awq` of the three names of AWQ, and no `marlin`."""
    plain: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000}
    plain |= {
        "num_hidden_layers": 2,
        "hidden_size": 960,
        "intermediate_size": 1024,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
    }
    models = [plain, *({**plain, "quantization_config": {"quant_method": own, **METHODS[own]}} for own in METHODS)]
    wanted = (*METHODS, "gptq_marlin", "auto_gptq", "modelopt_fp4")
    cases: list[Case] = [(model, method, 1) for model in models for method in wanted]
    cases += [(plain, None, ranks) for ranks in (1, 2, 3, 5, 7, 8)]
    refusals = query_models(cases)
    assert [(case, why) for case, why in zip(cases, refusals, strict=True) if bool(why) != _is_refused(*case)] == []


def _is_refused(config: Mapping[str, object], method: str | None, ranks: int) -> bool:
    flags = {"tensor-parallel-size": str(ranks)} | ({"quantization": method} if method else {})
    issues = rules.find_issues(Launch(flags=flags, gpu=False, model=parse_limits(config)))
    return any(issue.rule in ("model-heads", "model-quantization") for issue in issues)


def as_dicts(table: FlagTable) -> tuple[object, ...]:
    """In any order of rows."""
    fields = {flag: {one.name: one for one in rows} for flag, rows in table.fields.items() if rows}
    return {flag.name: flag for flag in table.flags}, fields, {*table.variables}


def _seen(line: Line, by: set[str] = ON_THE_WORDS) -> list[str]:
    argv = ("vllm", *line)
    found = rules.find_issues(Launch(flags=first_values(argv), given=parse_command(argv), vllm=TABLE))
    # The parser takes any text for it, which the engine refuses later.
    later = ("flag-choice", "args.attention-backend")
    return [one.reason for one in found if one.rule in by and (one.rule, one.at) != later]


def _ranks() -> Iterator[tuple[str, Line]]:
    for file in sorted(RECIPES.glob("*.yaml")):
        recipe = load_recipe(file.stem, [RECIPES]).recipe.model_copy(update={"executor": "mp"})
        for rank in range(recipe.nodes.min) if not recipe.flags.extra else ():
            node = Node(rank, f"10.0.0.{rank + 1}", "10.0.0.1", recipe.nodes.min, "eth1", ("mlx5_0",))
            argv = make_plan(recipe, Settings(), node).argv
            model = argv.index("--served-model-name") - 1
            yield f"{file.stem}, rank {rank}", ("serve", *argv[model:])
