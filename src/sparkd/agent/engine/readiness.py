"""Readiness stages of a launch: HTTP answers, the rank has the port, takes the key, lists the model, completes."""

import math
import time
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.lib.errors import NotReadyError
from sparkd.base.lib.http_client import HttpError, LateError, WrongServerError
from sparkd.base.lib.main_loop import MainLoop, Outcome
from sparkd.base.vllm.api import UNPROVABLE, Completion, Endpoint, KeyRefusedError

PROBE_SECONDS = 0.2
"""A refused connection costs 0.6 ms, so frequent probes are cheap."""
RETRY_SECONDS = 1.0
"""Pause after a failed completion: each one is real work for the engine."""
MAX_EXTENSION = 2
"""A load that still works may take up to three times its limit: a loop that never gets anywhere looks like work."""


class ReadinessStage(Enum):
    """Stages in order; the values are texts for reports."""

    HTTP = "HTTP to answer"
    PORT = "the rank to have its port"
    KEY = "the endpoint to take the key"
    MODEL = "the model to be listed"
    COMPLETION = "the first completion"


class ProbeResult(Struct, frozen=True):
    """`failed`: the first stage not passed, None when all were. `answer`: what the engine, or the failure, says.

    `late`: whether the completion had no answer in its time, as while kernels are compiled for it.
    """

    failed: ReadinessStage | None
    answer: str = ""
    late: bool = False


async def probe(
    endpoint: Endpoint, completion_seconds: float, note_http: Callable[[], None] = lambda: None
) -> ProbeResult:
    """Find the first stage that is not passed. Tokens for clients prove the last one, too, while the own request waits
    behind theirs, or is refused by a limit of the queue. `note_http` is called once HTTP answers.
    """
    try:
        served = await endpoint.serves()
        note_http()
    except WrongServerError as error:
        return ProbeResult(ReadinessStage.PORT, str(error))
    except HttpError as error:
        return ProbeResult(ReadinessStage.HTTP, str(error))
    except KeyRefusedError:
        return ProbeResult(ReadinessStage.KEY)
    if endpoint.served_name not in served:
        return ProbeResult(ReadinessStage.MODEL, ", ".join(served)[:200])
    earlier_tokens = await _count_tokens(endpoint)
    is_late = False
    try:
        completion = await endpoint.complete(completion_seconds)
    except HttpError as error:
        completion, is_late = Completion(token=False, error=str(error)), isinstance(error, LateError)
    waits = is_late or completion.error.startswith("HTTP 503")  # an own request that failed counts its prompt, too
    if completion.token or (waits and await _count_tokens(endpoint) > earlier_tokens):
        return ProbeResult(None)
    return ProbeResult(ReadinessStage.COMPLETION, completion.error, is_late)


async def _count_tokens(endpoint: Endpoint) -> float:
    """The tokens that the engine has read and generated. NaN, which is never more, where it does not say."""
    try:
        counters = await endpoint.counters()
    except HttpError:
        return math.nan
    return math.nan if counters is None else counters.prompt_tokens + counters.generation_tokens


def await_ready(
    loop: MainLoop,
    endpoint: Endpoint,
    launch_seconds: float,
    completion_seconds: float,
    show: Callable[[ReadinessStage], LoadProgress],
    works: Callable[[], bool],
    hint: str = "readiness.timeout_seconds allows more",
) -> None:
    """Wait for the first completion.

    `show(stage)` reports the awaited stage and returns the load progress. Raises NotReadyError (exit 12): at once where
    the endpoint serves another model, refuses the key, or can't be tested; else after `launch_seconds`. While HTTP
    does not answer and the load `works`, it waits longer, up to three times as long; where it answers that late, also
    for a completion that is late. The first one is awaited where it is under way.
    """
    deadline, answered_at = time.monotonic() + launch_seconds, math.inf
    probing: Outcome[ProbeResult] | None = None
    next_at, is_late = 0.0, False
    stage, answer, progress = ReadinessStage.HTTP, "", show(ReadinessStage.HTTP)

    def note_http() -> None:
        nonlocal answered_at
        answered_at = min(answered_at, time.monotonic())

    while True:
        now = time.monotonic()
        if probing is None:
            probing = loop.start(probe(endpoint, completion_seconds, note_http)) if now >= next_at else None
        elif probing.done():
            result, probing = probing.result(), None
            if result.failed is None:
                return
            _raise_if_hopeless(result, endpoint.served_name)
            stage, answer, is_late = result.failed, result.answer, result.late
            next_at = now + (RETRY_SECONDS if stage is ReadinessStage.COMPLETION else PROBE_SECONDS)
        before, progress = progress, show(stage)
        if progress.step != before.step:
            next_at = now  # a new step: the endpoint may answer now
        if now >= deadline:
            may_continue = _may_continue(stage, is_late=is_late, was_slow=answered_at > deadline)
            if not (may_continue and now < deadline + MAX_EXTENSION * launch_seconds and works()):
                raise _late_error(launch_seconds, stage, answer, progress.step, hint)
        loop.wait(PROBE_SECONDS if probing is not None else max(0.0, min(PROBE_SECONDS, next_at - now)))


def _may_continue(stage: ReadinessStage, *, is_late: bool, was_slow: bool) -> bool:
    """Whether a load may continue after its time. `is_late`: its last completion; `was_slow`: HTTP's first answer."""
    return stage is ReadinessStage.HTTP or (is_late and was_slow)


def _late_error(launch_seconds: float, stage: ReadinessStage, answer: str, step: str, hint: str) -> NotReadyError:
    awaited = f"{stage.value}: {answer}" if answer and stage is not ReadinessStage.HTTP else stage.value
    reason = f"not ready within {launch_seconds:g} s: waited for {awaited}; the engine was {step}"
    return NotReadyError(reason, hint)


def _raise_if_hopeless(probed: ProbeResult, served_name: str) -> None:
    """Raises NotReadyError where waiting cannot help."""
    if probed.failed is ReadinessStage.KEY:
        raise NotReadyError("the endpoint refuses sparkd's key", "name its file under engine.secrets, as VLLM_API_KEY")
    if probed.failed is ReadinessStage.MODEL and probed.answer:
        raise NotReadyError(f"the endpoint serves {probed.answer}, not {served_name}", "check --served-model-name")
    if probed.answer == UNPROVABLE:
        reason = f"the engine can't be proven to work: {probed.answer}"
        raise NotReadyError(reason, "sparkd serves models that make text, embeddings or scores")
