"""A ladder's conditions before its first step, what is announced of it, and the recipe that it writes."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.measure.ladders import BASE, KNOBS, MINE, MINE_FILE, TUNING
from tests.unit.plans import configured

from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import UsageError
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Launch
from sparkd.tools.measure.climb import Tuning
from sparkd.tools.measure.figures import DECODE, FIRST, Spread
from sparkd.tools.measure.knobs import DRAFT_TOKENS, SEQUENCES, Knob
from sparkd.tools.measure.ladder import MeasuredStep, Position
from sparkd.tools.measure.ladder_ends import announce, choose_load, refuse_name, refuse_without_effect, render_recipe
from sparkd.tools.node.switching import load_chosen


@pytest.mark.parametrize(
    ("base", "name", "words"),
    [
        ("mine", "mine", "there is a recipe mine already"),
        ("mine", "../x", "small letters"),
        ("mine", "a\nb", "small letters"),
        ("/etc/sparkd/recipes/mine.yaml", "up", "needs a name"),
    ],
)
def test_a_name_that_hides_a_recipe_or_makes_none_is_refused(tree: Tree, base: str, name: str, words: str) -> None:
    tree.file(MINE_FILE, MINE)
    with pytest.raises(UsageError, match=words):
        refuse_name(base, name, Host(tree.root))


def test_a_free_name_is_taken(tree: Tree) -> None:
    tree.file(MINE_FILE, MINE)
    refuse_name("mine", "mine-tuned", Host(tree.root))


@pytest.mark.parametrize(
    ("knobs", "expect", "load"),
    [
        (KNOBS, {}, 16),
        (KNOBS[1:], {}, 4),
        (KNOBS[1:], {DECODE: {"1": 3, "8": 9}}, 8),
        ((Knob(SEQUENCES, 1, 900, 1),), {}, 256),
    ],
)
def test_the_load_is_the_same_in_all_steps(knobs: tuple[Knob, ...], expect: dict[str, object], load: int) -> None:
    base = replace(BASE, recipe=BASE.recipe.model_copy(update={"expect": expect}))
    assert choose_load(knobs, base) == load


@pytest.mark.parametrize("engine", [{"args": {"max-model-len": 1024}}, {"script": "/srv/own.sh"}])
def test_a_knob_without_effect_is_refused_before_the_first_step(tree: Tree, engine: dict[str, object]) -> None:
    tree.file(MINE_FILE, f"{MINE}args: {{max-num-seqs: 4, max-model-len: 1024}}\n")
    host, config = Host(tree.root), configured(engine={"recipe": "mine"})
    base = load_chosen("mine", 0, config, host)
    refuse_without_effect(KNOBS, base, config, host)
    config = configured(engine={"recipe": "mine", **engine})
    base = load_chosen("mine", 0, config, host)
    with pytest.raises(UsageError, match="changes nothing"):
        refuse_without_effect(KNOBS, base, config, host)
    with pytest.raises(UsageError, match="own value alone"):
        refuse_without_effect([Knob(SEQUENCES, 4, 4, 4)], base, config, host)


def test_the_number_of_steps_and_their_time_are_announced(tree: Tree) -> None:
    tree.file(MINE_FILE, MINE)
    host = Host(tree.root)
    lines = list(announce(TUNING, BASE, host))
    assert lines[:3] == [
        "recipe mine under 16 requests at once, at most 4 steps:",
        "  max-num-seqs 4: up 8 16; down none",
        "  max-model-len 1024: up none; down 512",
    ]
    assert "whose time is not known" in lines[3]
    launch = Launch("1", "", 0, "d", "other", Facts({}, {}, {}), load_seconds=510)
    history.write(host.files, launch)
    half = Tuning("mine-tuned", "f", KNOBS, 16, (MeasuredStep("", 0), MeasuredStep(SEQUENCES, 8)))
    lines = list(announce(half, BASE, host))
    assert lines[0].endswith("at most 2 steps more, measured: 2:")
    assert lines[3] == "each about 10 min, all 20 min, the last load's time included"
    history.write(host.files, replace(launch, id="2", recipe="mine", load_seconds=210))
    history.write(host.files, replace(launch, id="3"))
    assert list(announce(half, BASE, host))[3].startswith("each about 5 min"), "of this recipe"


@pytest.mark.parametrize("name", ["up", "2026-11-23", "123", "1.5", "true", "null", "1e3"])
def test_the_written_recipe_loads_and_has_its_figures(tmp_path: Path, name: str) -> None:
    args = (
        "args:\n  max-num-seqs: 4\n  dtype: float32\n  speculative-config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    (tmp_path / "mine.yaml").write_text(MINE + args)
    base = load_recipe("mine", [tmp_path]).recipe
    rate = Spread(123.45, 122, 124)
    best = MeasuredStep(DRAFT_TOKENS, 1, rate, first_token_seconds=0.5, kv_cache_tokens=4096)
    steps = (MeasuredStep("", 0, rate), best, MeasuredStep(DRAFT_TOKENS, 3, fault="it's 'bad': {x}"))
    position = Position(None, {SEQUENCES: 8, DRAFT_TOKENS: 1}, best)
    text = render_recipe(base, Tuning(name, "f", (), 8, steps), position, "2026-11-23T10:00:00.000+00:00")
    (tmp_path / f"{name}.yaml").write_text(text)
    written = load_recipe(name, [tmp_path]).recipe
    assert written.args["max-num-seqs"] == 8
    assert written.args["speculative-config"] == {"method": "ngram", "num_speculative_tokens": 1}
    assert written.args["dtype"] == "float32"
    assert written.expect == {"kv_cache_tokens": 4096, DECODE: {"8": 123.5}, FIRST: {"8": 0.5}}
