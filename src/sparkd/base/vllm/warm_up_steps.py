"""The sizes of the requests that warm an engine: what its limits are, and what each pass sends.

An engine compiles kernels for numbers of tokens and of requests in a batch, and for sampling, drafts, tools and JSON.
Powers of two do not meet all of these numbers (vLLM, pull request 52941, takes 42 sizes).
"""

from collections.abc import Iterable
from itertools import chain, cycle, islice, pairwise
from random import Random

from msgspec import Struct

from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import parse_amount
from sparkd.base.vllm.flag_values import DATA_SIZE

MOST_AT_ONCE = 256
BATCH_TOKENS = 8192
"""vLLM's own max-num-batched-tokens for a server on a GPU of this size."""
TILE, TILES = 64, 16
"""Tokens of a tile, and numbers of tiles: DeepSeek-V4's mHC kernels split each number up to some 12 in another way."""
SHORT_TOKENS = 64
"""The most tokens of a prompt that is sent together with others."""
PREFILL_ANSWER, BATCH_ANSWER = 2, 12
ANSWER_SPREAD = 8
"""Tokens by which answers differ, so that a batch shrinks step by step."""
SAMPLED_IN_TURN = ((False,), (True,), (False, True))
"""Which answers of a step are sampled, repeated over its requests: none, all, or every second one."""


class Limits(Struct, frozen=True):
    """How much an engine takes at once."""

    batch_tokens: int
    requests: int
    context_tokens: int
    tools: bool = False
    engines: int = 1
    """Data-parallel engines, among which requests are divided."""


class Step(Struct, frozen=True):
    """Requests that are sent at once."""

    prompts: tuple[int, ...]
    """The lengths of prompts in tokens."""
    answer_tokens: int
    """The length of the first answer; others are some tokens longer."""
    sampled: tuple[bool, ...]
    """Whether each answer is sampled; others are greedy."""


def read_limits(argv: Iterable[str], context_tokens: int) -> Limits:
    """Read the engine's limits off its command line."""
    flags = first_values(tuple(argv))

    def amount(flag: str, otherwise: int) -> int:
        return parse_amount(flags.get(flag) or "") or otherwise

    return Limits(
        batch_tokens=amount("max-num-batched-tokens", BATCH_TOKENS),
        requests=min(amount("max-num-seqs", MOST_AT_ONCE), MOST_AT_ONCE),
        context_tokens=context_tokens,
        tools={"tool-call-parser", "enable-auto-tool-choice"} <= flags.keys(),
        engines=min(amount(DATA_SIZE, 1), MOST_AT_ONCE),
    )


def sizes(most: int, draw: Random | None = None) -> list[int]:
    """Sizes from 1 to `most`: four an octave, and those of few tiles. With `draw`, one between each two of these."""
    boundaries = {2**power * (4 + quarter) // 4 for power in range(most.bit_length()) for quarter in range(4)}
    boundaries |= {TILE * count for count in range(1, TILES + 1)}
    ordered = [*sorted(boundary for boundary in boundaries if boundary < most), most]
    return ordered if draw is None else [draw.randint(*pair) for pair in pairwise(ordered)] or ordered


def with_one_below(size: int) -> tuple[int, ...]:
    """The size and the one below it: Triton has another kernel for multiples of 16, which all larger sizes are."""
    return (size - 1, size) if size > TILE else (size,)


def make_steps(limits: Limits, number: int) -> list[Step]:
    """Steps of pass `number`, from 1 on: each pass has other lengths, and samples where the one before was greedy."""
    draw = Random(number)  # noqa: S311 - no secret

    def fit(prompt_tokens: int, answer_tokens: int) -> int:
        return max(1, min(prompt_tokens, limits.context_tokens - answer_tokens))

    longest, short = fit(limits.batch_tokens, PREFILL_ANSWER), fit(SHORT_TOKENS, BATCH_ANSWER + ANSWER_SPREAD)
    lengths = sizes(longest, draw) if number > 1 else [*chain(*map(with_one_below, sizes(longest)))]
    lengths.append(fit(2 * limits.batch_tokens, PREFILL_ANSWER))
    single = [(length,) * limits.engines for length in lengths]
    counts = {*range(2, TILES + 1), *(2**power * half // 2 for power in range(4, 9) for half in (2, 3))}
    batches = [
        tuple(draw.randint(1, short) for _ in range(min(count * limits.engines, MOST_AT_ONCE)))
        for count in sorted(counts | {limits.requests})
        if count <= limits.requests
    ]
    steps = []
    for index, prompts in enumerate((*single, *batches)):
        period, answer_tokens = (2, PREFILL_ANSWER) if index < len(single) else (3, BATCH_ANSWER)
        sampled = SAMPLED_IN_TURN[(index + number) % period]
        steps.append(Step(prompts, answer_tokens, tuple(islice(cycle(sampled), len(prompts)))))
    return steps
