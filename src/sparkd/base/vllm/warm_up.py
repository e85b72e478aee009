"""Passes of requests until an engine has compiled what the requests of its clients need.

An engine compiles a kernel inside the first request that needs it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Protocol

from msgspec import Struct

from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.api import DIFFUSION, Answer, Endpoint
from sparkd.base.vllm.warm_up_steps import ANSWER_SPREAD, BATCH_ANSWER, Limits, Step, make_steps

MOST_PASSES = 6
"""Limit, since a kernel that each process compiles again would hold up every start."""
TEXT = "river stone window garden winter paper music bridge letter market engine north seven yellow under quick"
SAMPLED: Mapping[str, object] = {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "ignore_eos": True}
GREEDY: Mapping[str, object] = {"temperature": 0, "ignore_eos": True}
LOGPROBS: Mapping[str, object] = {"temperature": 0, "logprobs": 1}
"""The only one of some twenty further kinds that compiled kernels (vLLM 0.26, mixture of experts, H100)."""
STRUCTURED: Mapping[str, object] = {"response_format": {"type": "json_object"}}
_FUNCTION = {"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}}}
TOOLS: Mapping[str, object] = {"tools": [{"type": "function", "function": _FUNCTION}]}
TRIES = 2
"""Tries of a step without any answer: a server may close a connection that was idle."""


class Compiled(Struct, frozen=True):
    """What has been compiled so far."""

    kernels: int
    """Kernels on all nodes, by the lines in the engine's log."""
    files: int
    """Files with kernels in this node's caches."""
    compilers: int
    """Compilers that run now, on all nodes."""
    works: bool = False
    """Whether a node computes with new memory, as a compiler inside the engine does."""


class Result(Struct, frozen=True):
    """`kernels` and `files`: those that the passes compiled, counted as in `Compiled`."""

    requests: int
    passes: int
    kernels: int
    files: int
    over: bool = False
    """Whether another try gains nothing: it is whole, or all MOST_PASSES passes compiled and the last was answered."""
    whole: bool = False
    """Whether every prompt of the last pass was answered, and compiled nothing; or the model takes none of them."""
    lost: bool = False
    """Whether the endpoint has stopped answering."""
    fault: str = ""
    """The error of the last request without an answer; empty where there is none."""

    @property
    def shown(self) -> str:
        """A line for people."""
        sent = f"passes: {self.passes}, of {self.requests:,} requests together"
        fault = f"; not answered: {self.fault}" if self.fault else ""
        return f"{sent}; new files of kernels: {self.files}, used for the first time: {self.kernels}{fault}"


class NodeFigures(Protocol):
    """What a node reports of its engine, as in `Compiled`."""

    @property
    def kernels_compiled(self) -> int: ...
    @property
    def compilers(self) -> int: ...
    @property
    def works(self) -> bool: ...


def add_up(nodes: Sequence[NodeFigures], files: int) -> Compiled:
    return Compiled(
        kernels=sum(node.kernels_compiled for node in nodes),
        files=files,
        compilers=sum(node.compilers for node in nodes),
        works=any(node.works for node in nodes),
    )


Look = Callable[[], Awaitable[Compiled]]
"""Counts what has been compiled so far."""


async def warm_up(
    endpoint: Endpoint,
    limits: Limits,
    look: Look,
    show: Callable[[int, int, int], object],
    seconds: float,
    still_seconds: float,
    settle_seconds: float = 3.0,
) -> Result:
    """Send passes of requests until one compiles nothing, for at most `seconds`. Raises what `look` raises.

    `show` takes the number of the pass, of its steps that are done, and of all its steps. An endpoint that answers
    nothing for `still_seconds`, while no node compiles or works, is lost. The log and the reports of other nodes have
    what a pass compiled after `settle_seconds`.
    """
    deadline = time.monotonic() + seconds
    sender, first_look = Sender(endpoint, limits.tools, look, deadline, still_seconds), await look()
    await sender.learn_tokens()

    def sum_up(passes: int, compiled: Compiled, *, over: bool = False, whole: bool = False) -> Result:
        new = compiled.kernels - first_look.kernels, compiled.files - first_look.files
        return Result(sender.sent, passes, *new, over, whole, sender.is_lost, sender.fault)

    previous = first_look
    for number in range(1, MOST_PASSES + 1):
        steps = make_steps(limits, number)
        unanswered = 0
        for done, step in enumerate(steps):
            show(number, done, len(steps))
            unanswered += await sender.send(step)
            if unanswered and (sender.fault.startswith("HTTP 404") or DIFFUSION in sender.fault):
                return sum_up(0, await look(), over=True, whole=True)
            if sender.is_lost or time.monotonic() >= deadline:
                return sum_up(number, await look())
        await sender.send_structured()  # what it refuses counts as answered
        compiled = await _await_compilers(look, deadline, settle_seconds)
        if sender.is_lost or compiled.compilers:
            return sum_up(number, compiled)
        if (compiled.kernels, compiled.files) == (previous.kernels, previous.files):
            return sum_up(number, compiled, over=not unanswered, whole=not unanswered)
        previous = compiled
    return sum_up(MOST_PASSES, previous, over=not unanswered)


async def _await_compilers(look: Look, deadline: float, seconds: float) -> Compiled:
    """Look each `seconds` until no compiler runs, or the deadline is over."""
    while True:
        await asyncio.sleep(seconds)
        compiled = await look()
        if not compiled.compilers or time.monotonic() >= deadline:
            return compiled


class Sender:
    """Sends requests. A refused one is noted, and no reason to end: some servers take no token ids, or no JSON."""

    def __init__(self, endpoint: Endpoint, tools: bool, look: Look, deadline: float, still_seconds: float) -> None:
        self.sent = 0
        self.fault = ""
        """The last fault."""
        self.is_lost = False
        self._endpoint = endpoint
        self._structured = (STRUCTURED, TOOLS) if tools else (STRUCTURED,)
        self._look = look
        self._deadline = deadline
        self._still_seconds = still_seconds
        self._tokens: tuple[int, ...] = ()
        self._random = Random(time.time_ns())  # noqa: S311 - no secret, and no prompt that a prefix cache knows

    async def learn_tokens(self) -> None:
        """Have the server turn TEXT into tokens, which give prompts of exact lengths. Without them, words are sent."""
        with suppress(HttpError, ValueError):
            self._tokens = await self._endpoint.tokenize(TEXT)

    async def send(self, step: Step) -> int:
        """Send the prompts of a step. Returns how many were not answered."""

        def request(place: int) -> Awaitable[Answer]:
            prompt, wish = self._make_prompt(step.prompts[place]), SAMPLED if step.sampled[place] else GREEDY
            return self._endpoint.generate(
                prompt, step.answer_tokens + place % ANSWER_SPREAD, self._remaining_seconds, wish
            )

        return await self._send_all([partial(request, place) for place in range(len(step.prompts))])

    async def send_structured(self) -> None:
        """Send JSON, tools and log-probabilities, each alone, then all at once: Triton has another kernel for 1."""

        def chat(wish: Mapping[str, object]) -> Awaitable[Answer]:
            return self._endpoint.chat("What time is it? Answer in JSON.", BATCH_ANSWER, self._remaining_seconds, wish)

        def score() -> Awaitable[Answer]:
            return self._endpoint.generate(self._make_prompt(1), BATCH_ANSWER, self._remaining_seconds, LOGPROBS)

        requests: list[Callable[[], Awaitable[Answer]]] = [partial(chat, wish) for wish in self._structured]
        requests.append(score)
        for batch in (*([request] for request in requests), requests):
            if not self.is_lost:
                await self._send_all(batch)

    @property
    def _remaining_seconds(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    async def _send_all(self, requests: Sequence[Callable[[], Awaitable[Answer]]]) -> int:
        """Send requests at once, and again where the endpoint answers none. Returns how many were not answered."""
        faults: list[BaseException] = []
        for _ in range(TRIES):
            answers = await self._await_answers([asyncio.ensure_future(request()) for request in requests])
            self.sent += len(answers)
            faults = [answer for answer in answers if isinstance(answer, BaseException)]
            for fault in faults:
                if not isinstance(fault, HttpError | ValueError):
                    raise fault
                self.fault = str(fault)
            is_silent = all(isinstance(answer, HttpError) for answer in answers)
            self.is_lost = is_silent and time.monotonic() < self._deadline  # after that, it may still compile
            if not self.is_lost:
                break
        return len(faults)

    async def _await_answers(self, requests: Sequence[asyncio.Future[Answer]]) -> Sequence[Answer | BaseException]:
        """The answer or error of each; one error for all where some stay unanswered while no node compiles."""
        previous: Compiled | None = None
        try:
            while True:
                pause = min(self._still_seconds / 2, self._remaining_seconds)
                _, pending = await asyncio.wait(requests, timeout=pause)
                if not pending:
                    return [request.exception() or request.result() for request in requests]
                compiled = await self._look()
                if compiled == previous and not (compiled.compilers or compiled.works):
                    fault = HttpError(f"no answer for {self._still_seconds:g} s, and nothing is compiled")
                    return [fault] * len(requests)
                previous = compiled
        finally:
            for request in requests:
                request.cancel()

    def _make_prompt(self, length: int) -> str | Sequence[int]:
        if self._tokens:
            return self._random.choices(self._tokens, k=length)
        return " ".join(self._random.choices(TEXT.split(), k=length))
