"""How fast the endpoint answers, by number of requests and by length of prompt. No cache knows the prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.counters import Drafts
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.measure.figures import Depth, LevelFigures, Reply, compare_depth, summarise

WORDS = ("river", "stone", "window", "garden", "winter", "paper", "music", "bridge", "letter", "market", "engine")
REQUEST_SECONDS = 900.0
"""Limit of one request. A prompt of 200,000 tokens takes a Spark some 240 s."""
SHORT, LONG = 8, 40
"""Words of the two prompts that show how many tokens a word has."""


class Wanted(Struct, frozen=True):
    """What is to be measured."""

    concurrency: tuple[int, ...]
    """Numbers of requests at once, one level for each."""
    depths: tuple[int, ...]
    """Lengths of prompts in tokens, each sent alone, twice."""
    prompt_tokens: int
    answer_tokens: int
    runs: int
    staggered: bool
    seed: int
    """Differs from that of any earlier measurement, whose prompts the prefix cache may know."""


class Benchmark(Struct, frozen=True):
    """A measurement, as the history keeps it."""

    made: str
    """UTC, ISO 8601."""
    node: str
    recipe: str
    model: str
    plan: str
    """Digest of what all ranks share."""
    version: str
    prompt_tokens: int
    answer_tokens: int
    levels: tuple[LevelFigures, ...] = ()
    depths: tuple[Depth, ...] = ()
    interrupted: bool = False
    fault: str = ""
    """Why it ended early."""


async def measure(endpoint: Endpoint, wanted: Wanted) -> AsyncIterator[LevelFigures | Depth]:
    """Yield each level, then each depth; end after a level in which all requests failed.

    Raises HttpError, StreamError.
    """
    prompts = Prompts(wanted.seed)
    await prompts.calibrate(endpoint)
    for concurrency in wanted.concurrency:
        level = await measure_level(endpoint, prompts, wanted, concurrency, wanted.runs)
        yield level
        if level.failed == level.requests:
            return
    for tokens in wanted.depths:
        prompt = prompts.make(tokens)
        answer = await endpoint.stream(prompt, wanted.answer_tokens, REQUEST_SECONDS)
        repeated_answer = await endpoint.stream(prompt, 1, REQUEST_SECONDS)
        yield compare_depth(answer, repeated_answer)


async def measure_level(
    endpoint: Endpoint, prompts: Prompts, wanted: Wanted, concurrency: int, runs: int
) -> LevelFigures:
    """Measure `runs` batches of so many requests, after a short one that is not counted."""

    def make_batch() -> list[str]:
        return [prompts.make(wanted.prompt_tokens) for _ in range(concurrency)]

    loop = asyncio.get_running_loop()
    await send(endpoint, make_batch(), 4, concurrency, 0)  # opens the connections, and touches the kernels of this size
    gap_seconds = 0.0
    if wanted.staggered:  # as many arrive during one request as run at once
        began = loop.time()
        await send(endpoint, make_batch()[:1], wanted.answer_tokens, 1, 0)
        gap_seconds = (loop.time() - began) / concurrency
    drafts_before = await _read_drafts(endpoint)
    batches = [await send(endpoint, make_batch(), wanted.answer_tokens, concurrency, gap_seconds) for _ in range(runs)]
    arrivals = "staggered" if wanted.staggered else "static"
    return summarise(concurrency, arrivals, batches, (drafts_before, await _read_drafts(endpoint)))


async def _read_drafts(endpoint: Endpoint) -> Drafts | None:
    try:
        return await endpoint.drafts()
    except HttpError:
        return None


class Prompts:
    """Makes prompts of which no two begin alike; nor do those of two measurements, as their `seed` differs."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - no secret
        self._fixed_tokens, self._tokens_per_word = 0.0, 1.0

    async def calibrate(self, endpoint: Endpoint) -> None:
        """Learn the length of a word in tokens, from the server's counts. Raises HttpError, StreamError."""
        prompts = map(self._write, (SHORT, LONG))
        answers = [await endpoint.stream(prompt, 1, REQUEST_SECONDS) for prompt in prompts]
        short_tokens, long_tokens = (answer.prompt_tokens for answer in answers)
        self._tokens_per_word = max((long_tokens - short_tokens) / (LONG - SHORT), 0.1)
        self._fixed_tokens = short_tokens - SHORT * self._tokens_per_word

    def make(self, tokens: int) -> str:
        """A prompt of about so many tokens."""
        return self._write(max(1, round((tokens - self._fixed_tokens) / self._tokens_per_word)))

    def _write(self, words: int) -> str:
        body = " ".join(self._random.choices(WORDS, k=words))
        return f"{self._random.getrandbits(48):012x} Continue this list of words: {body}"


async def send(
    endpoint: Endpoint, prompts: Sequence[str], tokens: int, at_once: int, gap_seconds: float
) -> list[Reply]:
    """Send the prompts, at most `at_once` at a time.

    `gap_seconds`: the mean time between two arrivals, as a Poisson process; 0: no gaps.
    """
    slots = asyncio.Semaphore(at_once)
    random = Random(len(prompts))  # noqa: S311 - the same arrivals each time
    delays, delay_seconds = [], 0.0
    for _ in prompts:
        delays.append(delay_seconds)
        delay_seconds += random.expovariate(1 / gap_seconds) if gap_seconds else 0.0

    async def request(prompt: str, delay: float) -> Reply:
        await asyncio.sleep(delay)
        async with slots:
            try:
                return await endpoint.stream(prompt, tokens, REQUEST_SECONDS)
            except (HttpError, StreamError) as error:
                return str(error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(request(*pair)) for pair in zip(prompts, delays, strict=True)]
    return [task.result() for task in tasks]
