"""Requests after which an engine has compiled what its clients' requests need.

Kernels are compiled inside the first request that needs them: by the number of tokens and of requests in a batch, in
sizes that no powers of two alone meet (vLLM, pull request 52941, takes 42), and for sampling, drafts, tools and JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Protocol

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Answer, Endpoint
from sparkd.base.vllm.flag import first_values, parse_amount

MOST_AT_ONCE = 256
BATCH_TOKENS = 8192
"""Where no max-num-batched-tokens is given: vLLM's own for a server on a GPU of this size."""
TILE, TILES = 64, 16
"""Tokens: DeepSeek-V4's mHC kernels split by the number of tiles, each number up to some 12 another way."""
MOST_PASSES = 6
"""A kernel that each process compiles anew, and keeps nowhere, must not hold up every start."""
SHORT_TOKENS = 64
"""Of a prompt that is sent together with others: at most."""
PREFILL_ANSWER, BATCH_ANSWER = 2, 12
LEAVING = 8
"""Tokens by which answers differ, so that a batch shrinks step by step."""
LEAST_SECONDS = 0.1
SETTLE_SECONDS = 3.0
"""For what a pass has compiled to be in the log, and in the reports of the other nodes."""
TEXT = "river stone window garden winter paper music bridge letter market engine north seven yellow under quick"
SAMPLED: Mapping[str, object] = {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "ignore_eos": True}
GREEDY: Mapping[str, object] = {"temperature": 0, "ignore_eos": True}
STRUCTURED: Mapping[str, object] = {"response_format": {"type": "json_object"}}
TOOLS: Mapping[str, object] = {"tools": [{"type": "function", "function": {"name": "get_time", "parameters": {}}}]}


class Limits(Struct, frozen=True):
    """Of the engine."""

    batch_tokens: int
    requests: int
    context_tokens: int
    tools: bool = False


class Step(Struct, frozen=True):
    """Requests that are sent at once."""

    prompts: tuple[int, ...]
    """Their lengths in tokens."""
    answer_tokens: int
    """Of the first; others have some more."""
    sampled: tuple[bool, ...]
    """Or greedy, each."""


class Compiled(Struct, frozen=True):
    """So far."""

    kernels: int
    """By the engine's own lines, on all nodes."""
    files: int
    """Of kernels, in this node's caches."""
    compilers: int
    """That run, on all nodes."""


class Counts(Protocol):
    """In the report of a node."""

    @property
    def kernels_compiled(self) -> int: ...

    @property
    def compilers(self) -> int: ...


class Result(Struct, frozen=True):
    whole: bool
    """The last pass has compiled nothing."""
    passes: int
    requests: int
    kernels: int
    files: int
    """Compiled meanwhile, as `Compiled`."""
    fault: str = ""
    """Of the last request that was not answered."""

    @property
    def shown(self) -> str:
        counted = f"{self.requests:,} requests in {self.passes} passes: {self.kernels} kernels and {self.files} files"
        return f"{counted} of kernels are new" + (f"; not answered: {self.fault}" if self.fault else "")


def read_limits(argv: Iterable[str], context_tokens: int) -> Limits:
    flags = first_values(tuple(argv))

    def amount(flag: str, otherwise: int) -> int:
        return parse_amount(flags.get(flag) or "") or otherwise

    requests = min(amount("max-num-seqs", MOST_AT_ONCE), MOST_AT_ONCE)
    return Limits(amount("max-num-batched-tokens", BATCH_TOKENS), requests, context_tokens, "tool-call-parser" in flags)


def add_up(nodes: Sequence[Counts], files: int) -> Compiled:
    return Compiled(sum(one.kernels_compiled for one in nodes), files, sum(one.compilers for one in nodes))


def sizes(most: int, draw: Random | None = None) -> list[int]:
    """From 1 to `most`, four an octave and all tiles of a few; with `draw` one between each of these and the next."""
    marks = {2**power * (4 + quarter) // 4 for power in range(most.bit_length()) for quarter in range(4)}
    marks |= {TILE * count for count in range(1, TILES + 1)}
    known = [*sorted(one for one in marks if one < most), most]
    return known if draw is None else [draw.randint(*pair) for pair in pairwise(known)] or known


def make_steps(limits: Limits, number: int) -> list[Step]:
    """Of pass `number`, from 1 on: each has other lengths, and samples where the one before was greedy."""
    draw = Random(number)  # noqa: S311 - no secret
    longest = max(1, min(limits.batch_tokens, limits.context_tokens - PREFILL_ANSWER))
    twice = max(1, min(2 * limits.batch_tokens, limits.context_tokens - PREFILL_ANSWER))
    short = max(1, min(SHORT_TOKENS, limits.context_tokens - BATCH_ANSWER - LEAVING))
    alone = [(size,) for size in (*sizes(longest, draw if number > 1 else None), twice)]
    counts = {*(2**power * half // 2 for power in range(1, 9) for half in (2, 3)), limits.requests}
    together = [
        tuple(draw.randint(1, short) for _ in range(count)) for count in sorted(counts) if count <= limits.requests
    ]
    steps = []
    for index, prompts in enumerate((*alone, *together)):
        kind = (index + number) % 3 if len(prompts) > 1 else (index + number) % 2
        sampled = tuple(kind == 1 or (kind == 2 and place % 2 == 1) for place in range(len(prompts)))
        steps.append(Step(prompts, BATCH_ANSWER if len(prompts) > 1 else PREFILL_ANSWER, sampled))
    return steps


async def warm_up(
    endpoint: Endpoint,
    limits: Limits,
    look: Callable[[], Awaitable[Compiled]],
    show: Callable[[int, int, int], object],
    seconds: float,
) -> Result:
    """Passes of requests until one compiles nothing, for at most `seconds`. Raises what `look` raises.

    `show` takes the number of the pass, its steps that are done, and all of them.
    """
    deadline = time.monotonic() + seconds
    sender, before = Sender(endpoint, limits.tools), await look()
    await sender.learn_words()

    def result(passes: int, after: Compiled, *, whole: bool = False) -> Result:
        new = after.kernels - before.kernels, after.files - before.files
        return Result(whole, passes, sender.sent, *new, sender.fault)

    seen = before
    for number in range(1, MOST_PASSES + 1):
        steps = (*make_steps(limits, number), None)
        for done, step in enumerate(steps):
            show(number, done, len(steps))
            await (sender.send(step, deadline) if step else sender.send_structured(deadline))
            if time.monotonic() >= deadline or sender.is_lost:
                return result(number, await look())
        after = await _settle(look, deadline)
        if (after.kernels, after.files) == (seen.kernels, seen.files):
            return result(number, after, whole=True)
        seen = after
    return result(MOST_PASSES, seen)


async def _settle(look: Callable[[], Awaitable[Compiled]], deadline: float) -> Compiled:
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        seen = await look()
        if not seen.compilers or time.monotonic() >= deadline:
            return seen


class Sender:
    """A server's refusal of a request is noted, and is no reason to end: some take no numbers of tokens, or no JSON."""

    def __init__(self, endpoint: Endpoint, tools: bool) -> None:
        self.sent = 0
        self.fault = ""
        """The last one."""
        self.is_lost = False
        """Of a whole step nothing was answered, nor refused."""
        self._endpoint = endpoint
        self._structured = (STRUCTURED, TOOLS) if tools else (STRUCTURED,)
        self._words: tuple[int, ...] = ()
        self._random = Random(time.time_ns())  # noqa: S311 - no secret, and no prompt that a prefix cache knows

    async def learn_words(self) -> None:
        """As numbers of tokens, which give prompts of exact lengths. Where there are none, words are sent."""
        with suppress(HttpError, ValueError):
            self._words = await self._endpoint.tokenize(TEXT)

    async def send(self, step: Step, deadline: float) -> None:
        seconds = max(LEAST_SECONDS, deadline - time.monotonic())

        def request(place: int) -> Awaitable[Answer]:
            prompt, wish = self._make_prompt(step.prompts[place]), SAMPLED if step.sampled[place] else GREEDY
            return self._endpoint.generate(prompt, step.answer_tokens + place % LEAVING, seconds, wish)

        await self._note(request(place) for place in range(len(step.prompts)))

    async def send_structured(self, deadline: float) -> None:
        seconds = max(LEAST_SECONDS, deadline - time.monotonic())
        chat = self._endpoint.chat
        await self._note(
            chat("What time is it? Answer in JSON.", BATCH_ANSWER, seconds, one) for one in self._structured
        )

    async def _note(self, requests: Iterable[Awaitable[object]]) -> None:
        found = await asyncio.gather(*requests, return_exceptions=True)
        self.sent += len(found)
        faults = [one for one in found if isinstance(one, BaseException)]
        self.is_lost = len(faults) == len(found) and all(isinstance(one, HttpError) for one in faults)
        for one in faults:
            if not isinstance(one, HttpError | ValueError):
                raise one
            self.fault = str(one)

    def _make_prompt(self, length: int) -> str | Sequence[int]:
        if self._words:
            return self._random.choices(self._words, k=length)
        return " ".join(self._random.choices(TEXT.split(), k=length))
