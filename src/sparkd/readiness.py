"""Gates until a launch counts as serving: the container runs, HTTP answers, the model is listed, a token comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import Protocol

from msgspec import Struct

from sparkd.engine.story import Story
from sparkd.errors import NotReadyError
from sparkd.host.endpoint import Endpoint, KeyRefusedError
from sparkd.host.http import Unanswered

KNOCK_SECONDS = 0.2
"""A refused connection costs 0.1 ms: knocking often keeps sparkd's share of a start small."""
RETRY_SECONDS = 1.0
"""After a completion that failed: each one is real work for the engine."""


class Gate(Enum):
    """What is still to pass, in order."""

    HTTP = "HTTP to answer"
    KEY = "the endpoint to take the key"
    MODEL = "the model to be listed"
    COMPLETION = "the first completion"


class Knock(Struct, frozen=True):
    """How far one try came: `closed` is the gate that did not open, None when all did; `said`, the engine's answer."""

    closed: Gate | None
    said: str = ""


class Wait(Protocol):
    """The main loop's waiting, as Pulse does it."""

    def wait(self, seconds: float, fd: int | None = None) -> bool: ...
    def start(self, work: Callable[[], Knock]) -> Future[Knock]: ...


class Limits(Struct, frozen=True):
    """Seconds for the whole launch, and for one completion."""

    launch_seconds: float
    completion_seconds: float


def knock(endpoint: Endpoint, served_name: str, completion_seconds: float) -> Knock:
    """Try all gates once."""
    try:
        served = endpoint.serves()
    except Unanswered as error:
        return Knock(Gate.HTTP, str(error))
    except KeyRefusedError:
        return Knock(Gate.KEY)
    if served_name not in served:
        return Knock(Gate.MODEL, ", ".join(served)[:200])
    try:
        completion = endpoint.complete(completion_seconds)
    except Unanswered as error:
        return Knock(Gate.COMPLETION, str(error))
    return Knock(None) if completion.token else Knock(Gate.COMPLETION, completion.said)


def await_ready(
    pulse: Wait,
    pidfd: int,
    new_endpoint: Callable[[], Endpoint],
    served_name: str,
    limits: Limits,
    show: Callable[[Gate], Story],
) -> bool:
    """True once a completion has come; False when the container ended first.

    `show` is told what is awaited at each turn and gives the engine's story. Raises NotReadyError (exit 12) after
    `launch_seconds`, or at once when the endpoint serves another model or wants another key.
    """
    deadline = time.monotonic() + limits.launch_seconds
    endpoint = new_endpoint()
    asked: Future[Knock] | None = None
    next_at = 0.0
    gate, said, story = Gate.HTTP, "", show(Gate.HTTP)
    while True:
        now = time.monotonic()
        if asked is None and now >= next_at:
            asked = pulse.start(lambda: knock(endpoint, served_name, limits.completion_seconds))
        elif asked is not None and asked.done():
            result, asked = asked.result(), None
            if result.closed is None:
                return True
            gate, said = result.closed, result.said
            if gate is Gate.KEY:
                raise NotReadyError(
                    "the endpoint refuses sparkd's key", "name its file under engine.secrets, as VLLM_API_KEY"
                )
            if gate is Gate.MODEL and said:
                raise NotReadyError(f"the endpoint serves {said}, not {served_name}", "check --served-model-name")
            next_at = now + (RETRY_SECONDS if gate is Gate.COMPLETION else KNOCK_SECONDS)
        before, story = story, show(gate)
        if story.step != before.step:
            next_at = now  # the engine has come a step further: perhaps to answering
        if now >= deadline:
            raise NotReadyError(
                _late(limits.launch_seconds, gate, said, story), "readiness.timeout_seconds allows more"
            )
        pause = KNOCK_SECONDS if asked is not None else max(0.0, min(KNOCK_SECONDS, next_at - now))
        if pulse.wait(pause, pidfd):
            return False


def _late(seconds: float, gate: Gate, said: str, story: Story) -> str:
    answer = f": {said}" if said and gate is Gate.COMPLETION else ""
    return f"not ready within {seconds:g} s: waited for {gate.value}{answer}; the engine was {story.step}"
