"""How fast the endpoint answers: by number of requests, and by length of prompt; prompts that no cache knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Drafts, Endpoint
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.measure.figures import Depth, Level, Reply, compare_depth, summarise

WORDS = ("river", "stone", "window", "garden", "winter", "paper", "music", "bridge", "letter", "market", "engine")
REQUEST_SECONDS = 900.0
"""Limit of one request. A prompt of 200,000 tokens takes a Spark some 240 s."""
SHORT, LONG = 8, 40
"""Words of the two prompts that show how many tokens a word has."""


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


class Prompts:
    """No two have a common beginning, in this session or another: `seed` is to differ."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - no secret
        self._fixed, self._per_word = 0.0, 1.0

    async def calibrate(self, endpoint: Endpoint) -> None:
        """Learn the length of a word in tokens, from the server's counts. Raises HttpError, StreamError."""
        short, long = [(await endpoint.stream(self.words(n), 1, REQUEST_SECONDS)).prompt_tokens for n in (SHORT, LONG)]
        self._per_word = max((long - short) / (LONG - SHORT), 0.1)
        self._fixed = short - SHORT * self._per_word

    def make(self, tokens: int) -> str:
        """A prompt of about so many tokens."""
        return self.words(max(1, round((tokens - self._fixed) / self._per_word)))

    def words(self, count: int) -> str:
        body = " ".join(self._random.choices(WORDS, k=count))
        return f"{self._random.getrandbits(48):012x} Continue this list of words: {body}"


async def send(
    endpoint: Endpoint, prompts: Sequence[str], tokens: int, at_once: int, gap_seconds: float
) -> list[Reply]:
    """Send the prompts, at most `at_once` at a time.

    `gap_seconds`: the mean time between two arrivals, as a Poisson process; 0: no gaps.
    """
    places = asyncio.Semaphore(at_once)
    drawn = Random(len(prompts))  # noqa: S311 - the same arrivals each time
    starts, due = [], 0.0
    for _ in prompts:
        starts.append(due)
        due += drawn.expovariate(1 / gap_seconds) if gap_seconds else 0.0

    async def answer(prompt: str, start: float) -> Reply:
        await asyncio.sleep(start)
        async with places:
            try:
                return await endpoint.stream(prompt, tokens, REQUEST_SECONDS)
            except (HttpError, StreamError) as error:
                return str(error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(answer(*pair)) for pair in zip(prompts, starts, strict=True)]
    return [task.result() for task in tasks]
