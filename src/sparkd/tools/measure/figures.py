"""What the replies of a measurement amount to, and how that compares. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median, quantiles

from msgspec import Struct

from sparkd.base.lib.text import sanitize
from sparkd.base.vllm.api import Drafts
from sparkd.base.vllm.streaming import Streamed
from sparkd.tools.measure.load import Reply

DECODE, FIRST = "decode_tokens_per_second", "first_token_seconds"
"""In a recipe's `expect`, by the number of requests: tokens of all requests together; seconds."""


class Spread(Struct, frozen=True):
    """The median, and the 5th and 95th percentile."""

    median: float
    low: float
    high: float


class Level(Struct, frozen=True):
    """Batches of `concurrency` requests, one batch after the other."""

    concurrency: int
    arrivals: str
    """`static`: a batch begins at once; `staggered`: one request after the other."""
    requests: int
    failed: int
    output_tokens_per_second: Spread | None
    """Of a batch: all its tokens, over the time from its first request to its last token. None: all requests failed."""
    stream_tokens_per_second: Spread | None
    """Of a request, from its first token on."""
    first_token_seconds: Spread | None
    inter_token_seconds: Spread | None
    """Between two events of a stream. With a drafter an event may have several tokens."""
    request_seconds: Spread | None
    accepted: tuple[float, ...] = ()
    """Share of the drafter's tokens that were accepted, by position."""
    fault: str = ""
    """Of the first request that failed."""
    compiled: int = 0
    """Kernels, inside these requests or others meanwhile."""


class Depth(Struct, frozen=True):
    """One prompt, sent twice."""

    prompt_tokens: int
    first_token_seconds: float
    prefill_tokens_per_second: float
    stream_tokens_per_second: float
    repeated_seconds: float
    """To the first token of the same prompt, which the prefix cache knows now."""
    compiled: int = 0
    """As `Level.compiled`."""


def summarise(
    concurrency: int, arrivals: str, batches: Sequence[Sequence[Reply]], drafts: Sequence[Drafts | None] = ()
) -> Level:
    """`drafts`: before and after the batches."""
    replies = [one for batch in batches for one in batch]
    good = [one for one in replies if isinstance(one, Streamed)]
    return Level(
        concurrency=concurrency,
        arrivals=arrivals,
        requests=len(replies),
        failed=len(replies) - len(good),
        output_tokens_per_second=spread(filter(None, map(output_rate, batches))),
        stream_tokens_per_second=spread(filter(None, map(stream_rate, good))),
        first_token_seconds=spread(one.arrivals[0] - one.begun for one in good),
        inter_token_seconds=spread(late - early for one in good for early, late in pairwise(one.arrivals)),
        request_seconds=spread(one.ended - one.begun for one in good),
        accepted=accepted(*drafts) if len(drafts) == 2 else (),
        fault=next((one for one in replies if isinstance(one, str)), ""),
    )


def spread(values: Iterable[float]) -> Spread | None:
    """None of no value."""
    known = list(values)
    if len(known) < 2:
        return Spread(known[0], known[0], known[0]) if known else None
    parts = quantiles(known, n=20, method="inclusive")
    return Spread(median(known), parts[0], parts[-1])


def output_rate(batch: Iterable[Reply]) -> float:
    good = [one for one in batch if isinstance(one, Streamed)]
    seconds = max((one.ended for one in good), default=0) - min((one.begun for one in good), default=0)
    return sum(one.tokens for one in good) / seconds if seconds > 0 else 0.0


def stream_rate(one: Streamed) -> float:
    """0 of an answer that came at once."""
    seconds = one.arrivals[-1] - one.arrivals[0]
    return (one.tokens - 1) / seconds if seconds > 0 else 0.0


def compare_depth(first: Streamed, second: Streamed) -> Depth:
    waited = first.arrivals[0] - first.begun
    repeated = second.arrivals[0] - second.begun
    rate = first.prompt_tokens / waited if waited > 0 else 0.0
    return Depth(first.prompt_tokens, waited, rate, stream_rate(first), repeated)


def accepted(before: Drafts | None, after: Drafts | None) -> tuple[float, ...]:
    """Empty without a drafter, where it proposed nothing, and where one of the two is not known."""
    if before is None or after is None:
        return ()
    proposed = after.proposed - before.proposed
    pairs = zip(after.accepted, before.accepted, strict=False)
    return tuple((now - then) / proposed for now, then in pairs) if proposed > 0 else ()


def expected(expect: Mapping[str, object], name: str, concurrency: int) -> float | None:
    """The source's figure; None where it has none that is a number above zero."""
    match expect.get(name):
        case {**by_number}:
            figure = by_number.get(str(concurrency))
            if isinstance(figure, int | float) and not isinstance(figure, bool) and 0 < figure < math.inf:
                return float(figure)
    return None


def find_level(levels: Iterable[Level], like: Level) -> Level | None:
    """The one that was measured in the same way."""
    wanted = (like.concurrency, like.arrivals)
    return next((one for one in levels if (one.concurrency, one.arrivals) == wanted), None)


def ratio(found: Spread | None, base: float | None) -> float | None:
    return found.median / base if found and base else None


def progress(one: Level | Depth) -> str:
    if isinstance(one, Depth):
        return f"prompt of {one.prompt_tokens:,} tokens: {seconds(one.first_token_seconds)} to the first token"
    rate = one.output_tokens_per_second
    return f"{one.concurrency} requests at once: {f'{rate.median:.1f} tokens/s' if rate else sanitize(one.fault)}"


def seconds(value: float) -> str:
    """`1.6 ms`, `16 ms`, `1.24 s`."""
    if value >= 0.9995:
        return f"{value:.2f} s"
    return f"{value * 1000:.0f} ms" if value >= 0.00995 else f"{value * 1000:.1f} ms"
