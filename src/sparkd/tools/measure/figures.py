"""The figures of a measurement, computed from its replies, and comparisons of them. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import TypeAlias

from msgspec import Struct

from sparkd.base.vllm.counters import Drafts
from sparkd.base.vllm.streaming import Streamed

DECODE, FIRST = "decode_tokens_per_second", "first_token_seconds"
"""Keys of a recipe's `expect`, by the number of requests: tokens of all requests together; seconds."""
LEAST_DIFFERENCE = 0.03
"""Share of a rate: a smaller difference counts as none, however small the spread is."""

Reply: TypeAlias = Streamed | str
"""An answer, or why there is none."""


class Spread(Struct, frozen=True):
    """The median, and the 5th and 95th percentile."""

    median: float
    low: float
    high: float


class LevelFigures(Struct, frozen=True):
    """Figures of batches of `concurrency` requests, sent one batch after the other."""

    concurrency: int
    arrivals: str
    """`static`: the requests of a batch begin together; `staggered`: one after the other."""
    requests: int
    failed: int
    output_tokens_per_second: Spread | None
    """A batch's tokens, over the time from its first request to its last answer's end. None: all requests failed."""
    stream_tokens_per_second: Spread | None
    """Rate of a single request, from its first token on."""
    first_token_seconds: Spread | None
    inter_token_seconds: Spread | None
    """The time between two events of a stream. With a drafter an event may have several tokens."""
    request_seconds: Spread | None
    accepted: tuple[float, ...] = ()
    """Share of the drafter's tokens that were accepted, by position."""
    fault: str = ""
    """The error of the first request that failed."""
    compiled: int = 0
    """Kernels that were compiled during these requests, for them or for others."""


class Depth(Struct, frozen=True):
    """Figures of one prompt, sent twice."""

    prompt_tokens: int
    first_token_seconds: float
    prefill_tokens_per_second: float
    stream_tokens_per_second: float
    repeated_seconds: float
    """The time to the first token of the same prompt, which the prefix cache knows now."""
    compiled: int = 0
    """Kernels, as in `LevelFigures`."""


def summarise(
    concurrency: int, arrivals: str, batches: Sequence[Sequence[Reply]], drafts: Sequence[Drafts | None] = ()
) -> LevelFigures:
    """The figures of a level. `drafts`: the drafter's counts before and after the batches."""
    replies = [reply for batch in batches for reply in batch]
    answers = [reply for reply in replies if isinstance(reply, Streamed)]
    return LevelFigures(
        concurrency=concurrency,
        arrivals=arrivals,
        requests=len(replies),
        failed=len(replies) - len(answers),
        output_tokens_per_second=spread(filter(None, map(output_rate, batches))),
        stream_tokens_per_second=spread(filter(None, map(stream_rate, answers))),
        first_token_seconds=spread(reply.arrivals[0] - reply.begun for reply in answers),
        inter_token_seconds=spread(late - early for reply in answers for early, late in pairwise(reply.arrivals)),
        request_seconds=spread(reply.ended - reply.begun for reply in answers),
        accepted=acceptance_by_position(*drafts) if len(drafts) == 2 else (),
        fault=next((reply for reply in replies if isinstance(reply, str)), ""),
    )


def spread(values: Iterable[float]) -> Spread | None:
    """Median and percentiles; None where there is no value."""
    known = list(values)
    if len(known) < 2:
        return Spread(known[0], known[0], known[0]) if known else None
    parts = quantiles(known, n=20, method="inclusive")
    return Spread(median(known), parts[0], parts[-1])


def output_rate(batch: Iterable[Reply]) -> float:
    """Tokens per second of all requests together; 0 where none was answered."""
    answers = [reply for reply in batch if isinstance(reply, Streamed)]
    begun, ended = [reply.begun for reply in answers], [reply.ended for reply in answers]
    elapsed_seconds = max(ended, default=0) - min(begun, default=0)
    return sum(reply.tokens for reply in answers) / elapsed_seconds if elapsed_seconds > 0 else 0.0


def stream_rate(reply: Streamed) -> float:
    """Tokens per second after the first token; 0 for an answer that came in one piece."""
    elapsed_seconds = reply.arrivals[-1] - reply.arrivals[0]
    return (reply.tokens - 1) / elapsed_seconds if elapsed_seconds > 0 else 0.0


def compare_depth(answer: Streamed, repeated_answer: Streamed) -> Depth:
    first_seconds = answer.arrivals[0] - answer.begun
    repeated_seconds = repeated_answer.arrivals[0] - repeated_answer.begun
    rate = answer.prompt_tokens / first_seconds if first_seconds > 0 else 0.0
    return Depth(answer.prompt_tokens, first_seconds, rate, stream_rate(answer), repeated_seconds)


def acceptance_by_position(earlier: Drafts | None, later: Drafts | None) -> tuple[float, ...]:
    """The share of proposed tokens that were accepted, by position.

    Empty without a drafter, where nothing was proposed, or where one of the counts is not known.
    """
    if earlier is None or later is None:
        return ()
    proposed = later.proposed - earlier.proposed
    pairs = zip(later.accepted, earlier.accepted, strict=False)
    return tuple((after_count - before_count) / proposed for after_count, before_count in pairs) if proposed > 0 else ()


def expected_figure(expect: Mapping[str, object], name: str, concurrency: int) -> float | None:
    """The figure that a recipe expects; None where it has none, or no finite number above zero."""
    match expect.get(name):
        case {**by_number}:
            figure = by_number.get(str(concurrency))
            if isinstance(figure, int | float) and not isinstance(figure, bool) and 0 < figure < math.inf:
                return float(figure)
    return None


def find_level(levels: Iterable[LevelFigures], like: LevelFigures) -> LevelFigures | None:
    """The level that was measured in the same way."""
    wanted = (like.concurrency, like.arrivals)
    return next((level for level in levels if (level.concurrency, level.arrivals) == wanted), None)


def is_faster(rate: Spread | None, base: Spread | None) -> bool:
    """Whether a rate is higher than `base` beyond the spread of both, and by LEAST_DIFFERENCE."""
    if rate is None or base is None:
        return False
    return rate.low > base.high and rate.median > base.median * (1 + LEAST_DIFFERENCE)


def describe_rate(rate: Spread) -> str:
    return f"{rate.median:.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f})"


def format_latency(seconds: float) -> str:
    """`1.6 ms`, `16 ms`, `1.24 s`."""
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1000:.1f} ms"


def ratio(figure: Spread | None, base: float | None) -> float | None:
    return figure.median / base if figure and base else None
