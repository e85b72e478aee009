"""The knobs of a ladder: bounds that a person gives, the rungs within them, and those of which reports warn."""

import pytest
from tests.unit.plans import recipe

from sparkd.base.lib.errors import UsageError
from sparkd.tools.measure import knobs
from sparkd.tools.measure.knobs import (
    BATCH_TOKENS,
    CONTEXT_LENGTH,
    DRAFT_TOKENS,
    MEMORY_SHARE,
    SEQUENCES,
    Knob,
    Value,
)

DRAFTS = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
DRAFTING = {"speculative-config": DRAFTS, "max-num-seqs": "1k", "gpu-memory-utilization": 0.85, "max-model-len": 65536}


@pytest.mark.parametrize(
    ("knob", "up", "down"),
    [
        (Knob(SEQUENCES, 2, 16, 4), [8, 16], [2]),
        (Knob(SEQUENCES, 4, 12, 4), [8, 12], []),
        (Knob(SEQUENCES, 2, 4, 4), [], [2]),
        (Knob(SEQUENCES, 4, 4, 4), [], []),
        (Knob(MEMORY_SHARE, 0.76, 0.83, 0.8), [0.82, 0.83], [0.78, 0.76]),
        (Knob(DRAFT_TOKENS, 1, 4, 2), [3, 4], [1]),
        (Knob(CONTEXT_LENGTH, 600, 4096, 1024), [2048, 4096], [600]),
    ],
)
def test_rungs_double_from_the_recipes_value_to_the_bounds(knob: Knob, up: list[Value], down: list[Value]) -> None:
    assert [*knobs.rungs(knob, up=True)] == up
    assert [*knobs.rungs(knob, up=False)] == down


def test_bounds_are_read_beside_the_recipes_own_value() -> None:
    texts = ("max-num-seqs=1..1K", "gpu-memory-utilization=0.7..0.9", "speculative-tokens=1..3", "max-model-len=8k..1m")
    assert knobs.read_knobs(texts, recipe(args=DRAFTING)) == (
        Knob(SEQUENCES, 1, 1024, 1000),
        Knob(MEMORY_SHARE, 0.7, 0.9, 0.85),
        Knob(DRAFT_TOKENS, 1, 3, 2),
        Knob(CONTEXT_LENGTH, 8000, 1000000, 65536),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-batched-tokens=4096..8192", "leaves it to the engine"),
        ("max-num-seqs=4..16", "has 1000"),
        ("gpu-memory-utilization=0.86..0.9", "has 0.85"),
    ],
)
def test_a_ladder_begins_with_the_recipes_own_value(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        knobs.read_knobs([text], recipe(args=DRAFTING))


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("max-num-seqs",),
        ("max-num-seqs=",),
        ("max-num-seqs=4",),
        ("max-num-seqs=8..4",),
        ("max-num-seqs=0..4",),
        ("max-num-seqs=1..999999",),
        ("max-num-seqs=1.5..4",),
        ("max-num-seqs=1..4", "max-num-seqs=1..8"),
        ("gpu-memory-utilization=0.5..1.5",),
        ("gpu-memory-utilization=nan..1",),
        ("max-num-seqs=\u0661..\u0664",),
        ("trust-remote-code=0..1",),
        ("speculative-tokens=1..3",),
        ("\x1b[31m=1..2",),
    ],
)
def test_other_bounds_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        knobs.read_knobs(texts, recipe())
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("knob", "words"),
    [
        (Knob(BATCH_TOKENS, 4096, 16384, 16384), "max-num-batched-tokens 4096: long prompts"),
        (Knob(BATCH_TOKENS, 8192, 16384, 16384), ""),
        (Knob(DRAFT_TOKENS, 1, 3, 2), "speculative-tokens 3: more than 2"),
        (Knob(DRAFT_TOKENS, 1, 2, 2), ""),
        (Knob(MEMORY_SHARE, 0.8, 0.93, 0.8), "gpu-memory-utilization 0.93: at most 0.912"),
        (Knob(MEMORY_SHARE, 0.8, 0.9, 0.8), ""),
        (Knob(CONTEXT_LENGTH, 512, 4096, 1024), ""),
    ],
)
def test_what_reports_warn_of_is_listed(knob: Knob, words: str) -> None:
    warnings = [*knobs.list_warnings([knob], recipe(args=DRAFTING))]
    assert len(warnings) == bool(words)
    assert "".join(warnings).startswith(words)


def test_no_report_warns_of_other_drafters() -> None:
    other = recipe(args={"speculative-config": {"method": "ngram", "num_speculative_tokens": 2}})
    assert not [*knobs.list_warnings([Knob(DRAFT_TOKENS, 1, 5, 2)], other)]
