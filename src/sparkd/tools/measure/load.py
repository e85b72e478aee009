"""Requests to the endpoint: prompts of a wanted length that no cache knows, and batches of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TypeAlias

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.streaming import Streamed, StreamError

WORDS = ("river", "stone", "window", "garden", "winter", "paper", "music", "bridge", "letter", "market", "engine")
REQUEST_SECONDS = 900.0
"""Limit of one request. A prompt of 200,000 tokens takes a Spark some 240 s."""
SHORT, LONG = 8, 40
"""Words of the two prompts that show how many tokens a word has."""

Reply: TypeAlias = Streamed | str
"""An answer, or why there is none."""


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
