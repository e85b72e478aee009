"""The sizes of the requests that warm an engine: what its limits are, and what each pass sends.

An engine compiles kernels for numbers of tokens and of requests in a batch, and for sampling, drafts, tools and JSON.
Powers of two do not meet all of these numbers (vLLM, pull request 52941, takes 42 sizes).
"""

from collections.abc import Iterable, Sequence
from itertools import cycle, islice, pairwise
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
"""The most tokens of a prompt in a batch."""
PREFILL_ANSWER, BATCH_ANSWER = 2, 12
"""Tokens of the answer to a prompt alone, and of the first one in a batch."""
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
    flags = first_values(argv)

    def amount(flag: str, otherwise: int) -> int:
        return parse_amount(flags.get(flag) or "") or otherwise

    return Limits(
        batch_tokens=amount("max-num-batched-tokens", BATCH_TOKENS),
        requests=min(amount("max-num-seqs", MOST_AT_ONCE), MOST_AT_ONCE),
        context_tokens=context_tokens,
        tools={"tool-call-parser", "enable-auto-tool-choice"} <= flags.keys(),
        engines=min(amount(DATA_SIZE, 1), MOST_AT_ONCE),
    )


def sizes(most: int) -> list[int]:
    """Sizes from 1 to `most`: four an octave, and those of few tiles."""
    boundaries = {2**power * (4 + quarter) // 4 for power in range(most.bit_length()) for quarter in range(4)}
    boundaries |= {TILE * count for count in range(1, TILES + 1)}
    return [*sorted(boundary for boundary in boundaries if boundary < most), most]


def make_steps(limits: Limits, number: int) -> list[Step]:
    """Steps of pass `number`, from 1 on: long prompts alone, then short ones in batches.

    Each pass has other lengths, and samples where the one before was greedy.
    """
    draw = Random(number)  # noqa: S311 - no secret

    def fit(prompt_tokens: int, answer_tokens: int) -> int:
        return max(1, min(prompt_tokens, limits.context_tokens - answer_tokens))

    longest, short = fit(limits.batch_tokens, PREFILL_ANSWER), fit(SHORT_TOKENS, BATCH_ANSWER + ANSWER_SPREAD)
    lengths = _lengths_between(sizes(longest), draw) if number > 1 else _with_one_below(sizes(longest))
    lengths.append(fit(2 * limits.batch_tokens, PREFILL_ANSWER))
    single = [(length,) * limits.engines for length in lengths]
    batches = [
        tuple(draw.randint(1, short) for _ in range(min(count * limits.engines, MOST_AT_ONCE)))
        for count in _batch_sizes(limits.requests)
    ]
    # Alone, "every second one" is the same as none: two turns.
    steps = [_make_step(prompts, PREFILL_ANSWER, (index + number) % 2) for index, prompts in enumerate(single)]
    turns = enumerate(batches, len(single) + number)
    return steps + [_make_step(prompts, BATCH_ANSWER, turn % len(SAMPLED_IN_TURN)) for turn, prompts in turns]


def _lengths_between(boundaries: Sequence[int], draw: Random) -> list[int]:
    """A length between each two neighbours; of a single one, itself."""
    return [draw.randint(*pair) for pair in pairwise(boundaries)] or [*boundaries]


def _with_one_below(lengths: Iterable[int]) -> list[int]:
    """The lengths, and those one below: Triton has another kernel for multiples of 16, which all larger ones are."""
    return [length for upper in lengths for length in ((upper - 1, upper) if upper > TILE else (upper,))]


def _batch_sizes(most: int) -> list[int]:
    """Numbers of requests up to `most`: each from 2 to TILES, then two an octave, and `most`."""
    counts = {*range(2, TILES + 1), *(2**power * half // 2 for power in range(4, 9) for half in (2, 3)), most}
    return sorted(count for count in counts if count <= most)


def _make_step(prompts: tuple[int, ...], answer_tokens: int, turn: int) -> Step:
    return Step(prompts, answer_tokens, tuple(islice(cycle(SAMPLED_IN_TURN[turn]), len(prompts))))
