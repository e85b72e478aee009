"""How fast the endpoint answers: by number of requests, and by length of prompt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from sparkd.lib.http_client import HttpError
from sparkd.measure.engine_bench import EngineFigures
from sparkd.measure.figures import Depth, Level, compare_depth, summarise
from sparkd.measure.load import REQUEST_SECONDS, Prompts, Reply, send
from sparkd.vllm.api import Drafts, Endpoint

WARM_TOKENS = 4
"""Of the answers that open the connections and touch the kernels of a batch's size, before it is measured."""


class Wanted(Struct, frozen=True):
    concurrency: tuple[int, ...]
    depths: tuple[int, ...]
    """Lengths of prompts."""
    prompt_tokens: int
    answer_tokens: int
    runs: int
    staggered: bool
    seed: int
    """To differ from that of any earlier measurement, whose prompts the prefix cache may know."""


class EngineLevel(Struct, frozen=True):
    """The same load by sparkd and by the engine's own program: `vllm bench serve`, medians."""

    own: Level
    output_tokens_per_second: float
    stream_tokens_per_second: float
    first_token_seconds: float
    request_seconds: float


class Result(Struct, frozen=True):
    """What is kept. `made`: UTC, ISO 8601."""

    made: str
    node: str
    recipe: str
    model: str
    plan: str
    """Digest of what all ranks share."""
    version: str
    prompt_tokens: int
    answer_tokens: int
    levels: tuple[Level, ...] = ()
    depths: tuple[Depth, ...] = ()
    engine: EngineLevel | None = None
    interrupted: bool = False
    fault: str = ""
    """Why it ended early."""


async def measure(endpoint: Endpoint, wanted: Wanted) -> AsyncIterator[Level | Depth]:
    """One after the other. It ends early after a level without any answer. Raises HttpError, StreamError."""
    prompts = Prompts(wanted.seed)
    await prompts.calibrate(endpoint)
    for concurrency in wanted.concurrency:
        found = await measure_level(endpoint, prompts, wanted, concurrency, wanted.runs)
        yield found
        if found.failed == found.requests:
            return
    for tokens in wanted.depths:
        prompt = prompts.make(tokens)
        first = await endpoint.stream(prompt, wanted.answer_tokens, REQUEST_SECONDS)
        second = await endpoint.stream(prompt, 1, REQUEST_SECONDS)
        yield compare_depth(first, second)


async def measure_steady(endpoint: Endpoint, wanted: Wanted) -> list[Reply]:
    """The largest number of requests, kept running until all batches are answered, as `vllm bench serve` does."""
    at_once = max(wanted.concurrency)
    prompts = Prompts(time.time_ns())
    await prompts.calibrate(endpoint)
    await send(endpoint, [prompts.make(wanted.prompt_tokens) for _ in range(at_once)], WARM_TOKENS, at_once, 0)
    texts = [prompts.make(wanted.prompt_tokens) for _ in range(at_once * wanted.runs)]
    return await send(endpoint, texts, wanted.answer_tokens, at_once, 0)


def pair_up(wanted: Wanted, own: Sequence[Sequence[Reply]], engine: EngineFigures) -> EngineLevel:
    return EngineLevel(
        own=summarise(max(wanted.concurrency), "static", own),
        output_tokens_per_second=engine.output_throughput,
        stream_tokens_per_second=1000 / engine.median_tpot_ms if engine.median_tpot_ms > 0 else 0.0,
        first_token_seconds=engine.median_ttft_ms / 1000,
        request_seconds=engine.median_e2el_ms / 1000,
    )


async def measure_level(endpoint: Endpoint, prompts: Prompts, wanted: Wanted, concurrency: int, runs: int) -> Level:
    def batch() -> list[str]:
        return [prompts.make(wanted.prompt_tokens) for _ in range(concurrency)]

    loop = asyncio.get_running_loop()
    await send(endpoint, batch(), WARM_TOKENS, concurrency, 0)
    gap = 0.0
    if wanted.staggered:  # as many arrive during one request as run at once
        began = loop.time()
        await send(endpoint, batch()[:1], wanted.answer_tokens, 1, 0)
        gap = (loop.time() - began) / concurrency
    before = await _drafts(endpoint)
    batches = [await send(endpoint, batch(), wanted.answer_tokens, concurrency, gap) for _ in range(runs)]
    arrivals = "staggered" if wanted.staggered else "static"
    return summarise(concurrency, arrivals, batches, (before, await _drafts(endpoint)))


async def _drafts(endpoint: Endpoint) -> Drafts | None:
    try:
        return await endpoint.drafts()
    except HttpError:
        return None
