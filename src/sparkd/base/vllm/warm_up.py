"""Requests after which an engine has compiled what its clients' requests need.

Kernels are compiled inside the first request that needs them: by the number of tokens and of requests in a batch, in
sizes that no powers of two alone meet (vLLM, pull request 52941, takes 42), and for sampling, drafts, tools and JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from random import Random

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import Answer, Endpoint
from sparkd.base.vllm.args import DATA_SIZE
from sparkd.base.vllm.flag import first_values, parse_amount

MOST_AT_ONCE = 256
BATCH_TOKENS = 8192
"""vLLM's own max-num-batched-tokens for a server on a GPU of this size."""
TILE, TILES = 64, 16
"""Tokens of a tile: DeepSeek-V4's mHC kernels split by the number of tiles, each number up to some 12 another way."""
MOST_PASSES = 6
"""A kernel that each process compiles again must not hold up every start."""
SHORT_TOKENS = 64
"""The most tokens of a prompt that is sent together with others."""
PREFILL_ANSWER, BATCH_ANSWER = 2, 12
LEAVING = 8
"""Tokens by which answers differ, so that a batch shrinks step by step."""
TEXT = "river stone window garden winter paper music bridge letter market engine north seven yellow under quick"
SAMPLED: Mapping[str, object] = {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "ignore_eos": True}
GREEDY: Mapping[str, object] = {"temperature": 0, "ignore_eos": True}
LOGPROBS: Mapping[str, object] = {"temperature": 0, "logprobs": 1}
"""The one of some twenty kinds of requests that still compiled (vLLM 0.26, a mixture of experts on an H100)."""
STRUCTURED: Mapping[str, object] = {"response_format": {"type": "json_object"}}
_FUNCTION = {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}}}
TOOLS: Mapping[str, object] = {"tools": [{"type": "function", "function": _FUNCTION}]}
TRIES = 2
"""Tries of a step without any answer: a server may close a connection that was idle."""


class Limits(Struct, frozen=True):
    """What an engine takes at once."""

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


class Compiled(Struct, frozen=True):
    """What has been compiled so far."""

    kernels: int
    """Kernels by the engine's own lines, on all nodes."""
    files: int
    """Files of kernels in this node's caches."""
    compilers: int
    """Compilers that run, on all nodes."""
    works: bool = False
    """Whether a node computes with new memory, as a compiler inside the engine does."""


class Result(Struct, frozen=True):
    """`kernels` and `files`: compiled meanwhile, as in `Compiled`."""

    requests: int
    passes: int
    kernels: int
    files: int
    over: bool = False
    """Every prompt of the last pass was answered, and it compiled nothing, or was the last of MOST_PASSES."""
    whole: bool = False
    """The last pass compiled nothing, and every prompt was answered."""
    lost: bool = False
    """The endpoint has stopped answering."""
    fault: str = ""
    """The error of the last request that was not answered."""

    @property
    def shown(self) -> str:
        sent = f"{self.requests:,} requests in {self.passes} passes"
        fault = f"; not answered: {self.fault}" if self.fault else ""
        return f"{sent}: {self.files} new files of kernels, {self.kernels} used for the first time{fault}"


def read_limits(argv: Iterable[str], context_tokens: int) -> Limits:
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


def add_up(nodes: Iterable[tuple[int, int, bool]], files: int) -> Compiled:
    """`nodes`: of each its kernels, its compilers, and whether it works."""
    kernels, compilers, works = zip(*nodes, strict=True)
    return Compiled(sum(kernels), files, sum(compilers), any(works))


def sizes(most: int, draw: Random | None = None) -> list[int]:
    """Sizes from 1 to `most`: four an octave, and those of few tiles; with `draw` one between each two of these."""
    marks = {2**power * (4 + quarter) // 4 for power in range(most.bit_length()) for quarter in range(4)}
    marks |= {TILE * count for count in range(1, TILES + 1)}
    known = [*sorted(mark for mark in marks if mark < most), most]
    return known if draw is None else [draw.randint(*pair) for pair in pairwise(known)] or known


def beside(size: int) -> tuple[int, ...]:
    """The size, and the one below it: Triton has another kernel for numbers that 16 divides, as larger sizes are."""
    return (size - 1, size) if size > TILE else (size,)


def make_steps(limits: Limits, number: int) -> list[Step]:
    """Steps of pass `number`, from 1 on: each pass has other lengths, and samples where the one before was greedy."""
    draw = Random(number)  # noqa: S311 - no secret

    def fit(prompt_tokens: int, answer_tokens: int) -> int:
        return max(1, min(prompt_tokens, limits.context_tokens - answer_tokens))

    longest, short = fit(limits.batch_tokens, PREFILL_ANSWER), fit(SHORT_TOKENS, BATCH_ANSWER + LEAVING)
    lengths = sizes(longest, draw) if number > 1 else [length for size in sizes(longest) for length in beside(size)]
    lengths.append(fit(2 * limits.batch_tokens, PREFILL_ANSWER))
    alone = [(length,) * limits.engines for length in lengths]
    counts = {
        *range(2, TILES + 1),
        *(2**power * half // 2 for power in range(4, 9) for half in (2, 3)),
        limits.requests,
    }
    together = [
        tuple(draw.randint(1, short) for _ in range(min(count * limits.engines, MOST_AT_ONCE)))
        for count in sorted(counts)
        if count <= limits.requests
    ]
    steps = []
    for index, prompts in enumerate((*alone, *together)):
        batch = index >= len(alone)
        kind = (index + number) % (3 if batch else 2)
        sampled = tuple(kind == 1 or (kind == 2 and place % 2 == 1) for place in range(len(prompts)))
        steps.append(Step(prompts, BATCH_ANSWER if batch else PREFILL_ANSWER, sampled))
    return steps


Look = Callable[[], Awaitable[Compiled]]


async def warm_up(
    endpoint: Endpoint,
    limits: Limits,
    look: Look,
    show: Callable[[int, int, int], object],
    seconds: float,
    still_seconds: float,
    settle_seconds: float = 3.0,
) -> Result:
    """Passes of requests until one compiles nothing, for at most `seconds`. Raises what `look` raises.

    `show` takes the number of the pass, its steps that are done, and all of them. An endpoint that answers nothing for
    `still_seconds` while nobody compiles or works is lost. What a pass has compiled is in the log, and in the reports
    of the other nodes, after `settle_seconds`.
    """
    deadline = time.monotonic() + seconds
    sender, before = Sender(endpoint, limits.tools, look, deadline, still_seconds), await look()
    await sender.learn_words()

    def sum_up(passes: int, after: Compiled, *, over: bool = False, whole: bool = False) -> Result:
        new = after.kernels - before.kernels, after.files - before.files
        return Result(sender.sent, passes, *new, over, whole, sender.is_lost, sender.fault)

    previous = before
    for number in range(1, MOST_PASSES + 1):
        steps = make_steps(limits, number)
        sender.unanswered = 0
        for done, step in enumerate(steps):
            show(number, done, len(steps))
            await sender.send(step)
            if sender.is_lost or time.monotonic() >= deadline:
                return sum_up(number, await look())
        await sender.send_structured()
        after = await _settle(look, deadline, settle_seconds)
        if sender.is_lost or after.compilers:
            return sum_up(number, after)
        if (after.kernels, after.files) == (previous.kernels, previous.files):
            return sum_up(number, after, over=not sender.unanswered, whole=not sender.unanswered)
        previous = after
    return sum_up(MOST_PASSES, previous, over=not sender.unanswered)


async def _settle(look: Look, deadline: float, seconds: float) -> Compiled:
    while True:
        await asyncio.sleep(seconds)
        compiled = await look()
        if not compiled.compilers or time.monotonic() >= deadline:
            return compiled


class Sender:
    """A server's refusal of a request is noted, and is no reason to end: some take no numbers of tokens, or no JSON."""

    def __init__(self, endpoint: Endpoint, tools: bool, look: Look, deadline: float, still_seconds: float) -> None:
        self.sent = 0
        self.unanswered = 0
        """Prompts without an answer; refusals of JSON and tools do not count."""
        self.fault = ""
        """The last one."""
        self.is_lost = False
        self._endpoint = endpoint
        self._structured = (STRUCTURED, TOOLS) if tools else (STRUCTURED,)
        self._look = look
        self._deadline = deadline
        self._still_seconds = still_seconds
        self._words: tuple[int, ...] = ()
        self._random = Random(time.time_ns())  # noqa: S311 - no secret, and no prompt that a prefix cache knows

    async def learn_words(self) -> None:
        """Read the words as numbers of tokens, which give prompts of exact lengths. Without them, words are sent."""
        with suppress(HttpError, ValueError):
            self._words = await self._endpoint.tokenize(TEXT)

    async def send(self, step: Step) -> None:
        def request(place: int) -> Awaitable[Answer]:
            prompt, wish = self._make_prompt(step.prompts[place]), SAMPLED if step.sampled[place] else GREEDY
            return self._endpoint.generate(prompt, step.answer_tokens + place % LEAVING, self._seconds, wish)

        self.unanswered += await self._send([partial(request, place) for place in range(len(step.prompts))])

    async def send_structured(self) -> None:
        """Send each alone, then all at once: Triton compiles another kernel where a number is 1."""

        def request(place: int) -> Awaitable[Answer]:
            if place == len(self._structured):
                return self._endpoint.generate(self._make_prompt(1), BATCH_ANSWER, self._seconds, LOGPROBS)
            wish = self._structured[place]
            return self._endpoint.chat("What time is it? Answer in JSON.", BATCH_ANSWER, self._seconds, wish)

        requests = [partial(request, place) for place in range(len(self._structured) + 1)]
        for together in (*([alone] for alone in requests), requests):
            if not self.is_lost:
                await self._send(together)

    @property
    def _seconds(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    async def _send(self, requests: Sequence[Callable[[], Awaitable[Answer]]]) -> int:
        """The number of requests that were not answered."""
        faults: list[BaseException] = []
        for _ in range(TRIES):
            answers = await self._await([asyncio.ensure_future(request()) for request in requests])
            self.sent += len(answers)
            faults = [answer for answer in answers if isinstance(answer, BaseException)]
            for fault in faults:
                if not isinstance(fault, HttpError | ValueError):
                    raise fault
                self.fault = str(fault)
            silent = all(isinstance(answer, HttpError) for answer in answers)
            self.is_lost = silent and time.monotonic() < self._deadline  # behind it, it may still compile
            if not self.is_lost:
                break
        return len(faults)

    async def _await(self, requests: Sequence[asyncio.Future[Answer]]) -> Sequence[Answer | BaseException]:
        before: Compiled | None = None
        try:
            while True:
                pause = min(self._still_seconds / 2, self._seconds)
                if not (await asyncio.wait(requests, timeout=pause))[1]:
                    return [request.exception() or request.result() for request in requests]
                now = await self._look()
                if now == before and not (now.compilers or now.works):
                    fault = HttpError(f"no answer for {self._still_seconds:g} s, and nothing is compiled")
                    return [fault] * len(requests)
                before = now
        finally:
            for request in requests:
                request.cancel()

    def _make_prompt(self, length: int) -> str | Sequence[int]:
        if self._words:
            return self._random.choices(self._words, k=length)
        return " ".join(self._random.choices(TEXT.split(), k=length))
