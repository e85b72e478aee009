"""How fast the endpoint answers: by number of requests, and by length of prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Drafts, Endpoint
from sparkd.tools.measure.figures import Depth, Level, compare_depth, summarise
from sparkd.tools.measure.load import REQUEST_SECONDS, Prompts, send


class Wanted(Struct, frozen=True):
    concurrency: tuple[int, ...]
    depths: tuple[int, ...]
    """Lengths of prompts."""
    prompt_tokens: int
    answer_tokens: int
    runs: int
    staggered: bool
    seed: int
    """Differs from that of any earlier measurement, whose prompts the prefix cache may know."""


class Result(Struct, frozen=True):
    """What is kept of a measurement. `made`: UTC, ISO 8601."""

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
    interrupted: bool = False
    fault: str = ""
    """Why it ended early."""


async def measure(endpoint: Endpoint, wanted: Wanted) -> AsyncIterator[Level | Depth]:
    """Levels and depths, one after the other, to a level without any answer. Raises HttpError, StreamError."""
    prompts = Prompts(wanted.seed)
    await prompts.calibrate(endpoint)
    for concurrency in wanted.concurrency:
        level = await measure_level(endpoint, prompts, wanted, concurrency, wanted.runs)
        yield level
        if level.failed == level.requests:
            return
    for tokens in wanted.depths:
        prompt = prompts.make(tokens)
        first = await endpoint.stream(prompt, wanted.answer_tokens, REQUEST_SECONDS)
        second = await endpoint.stream(prompt, 1, REQUEST_SECONDS)
        yield compare_depth(first, second)


async def measure_level(endpoint: Endpoint, prompts: Prompts, wanted: Wanted, concurrency: int, runs: int) -> Level:
    def batch() -> list[str]:
        return [prompts.make(wanted.prompt_tokens) for _ in range(concurrency)]

    loop = asyncio.get_running_loop()
    await send(endpoint, batch(), 4, concurrency, 0)  # opens the connections, and touches the kernels of this size
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
