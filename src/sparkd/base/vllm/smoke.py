"""The smoke test: short completions one by one and at once, whose answers show broken weights or kernels.

Logits that are NaN give token 0 for ever: "!!!!" with most tokenizers, nothing where that is a special token.
The log-probabilities of known texts, and of the engine's own answers, show well-formed nonsense.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence

from msgspec import Struct, toml
from msgspec.structs import replace

from sparkd.base.lib import read_data
from sparkd.base.lib.http_client import HttpError, LateError
from sparkd.base.vllm.answers import find_difference, find_end_fault, find_fault
from sparkd.base.vllm.api import DIFFUSION, Answer, Endpoint
from sparkd.base.vllm.capabilities import Capabilities
from sparkd.base.vllm.logprobs import UnscoredError, find_gap, find_nonsense

TOKENS, FEWEST_TOKENS = 48, 16
"""Tokens of an answer at temperature 1, and the fewest to which it is shortened for a slow engine."""
ALONE_SECONDS = 2.0
"""Limit for one answer alone: if it takes longer, the answers of the next rounds are shorter."""
AT_ONCE = (1, 2, 4, 6)
"""How many prompts each of these rounds sends at the same time."""
GREEDY, GREEDY_TOKENS = "1, 2, 3, 4, 5, 6, 7, 8,", 24
"""Sent at temperature 0. Its next token is certain enough that no rounding of a kernel changes it."""
OTHERS_TOKENS = tuple(FEWEST_TOKENS + 2 * number for number in range(4))
"""Lengths of the answers among which GREEDY is sent: they differ, so that the others also leave one by one."""
CHURN_SECONDS = 0.1
"""Pause between two requests that join the others."""
TOOL = "get_weather"
CONTEXT_ANSWER_TOKENS = 8
PREFILL_SECONDS, SHORTENED_SECONDS = 60.0, 8.0
"""The most that a prompt of the whole context may take by an estimate, and what a shorter one takes instead."""
GROWTH = 1.5
"""Factor by which a long prompt is slower than in proportion: attention grows with depth."""
_TEXTS = toml.decode(read_data("known-texts.toml"), type=dict[str, tuple[str, ...]])
TEXTS, PROMPTS = _TEXTS["texts"], _TEXTS["prompts"]
SCORE: Mapping[str, object] = {"max_tokens": 1, "prompt_logprobs": 0}
"""Fields of a request for the log-probabilities of its prompt's tokens."""
WRITE: Mapping[str, object] = {"max_tokens": 16, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
"""Fields of a request for an answer with the log-probabilities of its tokens."""


class Round(Struct, frozen=True):
    """One test of the engine, and what it showed."""

    name: str
    answers: int
    """How many answers were judged."""
    faults: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    """All answers together; None where nothing was answered, and in rounds that do not measure it."""
    note: str = ""
    """A remark that is no fault; empty where there is none."""
    skipped: str = ""
    """Why nothing was tested, which is neither good nor bad; empty where it was."""
    late: bool = False
    """Whether its only fault is that an answer was not there in time."""


async def run_short(
    endpoint: Endpoint, capabilities: Capabilities, seconds: float, *, step_seconds: float
) -> list[Round]:
    """Run the short form: a few completions, and log-probabilities. `seconds`: for each completion. `step_seconds`:
    time in which an engine that works ends a step.

    A fault here refuses the plan. So all is tried once more before a fault counts: healthy models write an odd answer
    now and then, broken weights and kernels always. A late answer of an engine that works for clients is no fault: its
    round is skipped, and ends the test.
    """
    faulty: list[Round] = []
    for _ in range(2):
        rounds = []
        async for round_ in run_rounds(endpoint, capabilities, seconds, short=True):
            rounds.append(round_)
            if round_.late and (requests := await _count_served(endpoint, step_seconds)):
                late = f"no answer within {seconds:g} s beside {requests:.0f} of clients' requests"
                rounds[-1] = replace(round_, faults=(), skipped=late)
                return faulty or rounds
        if not any(round_.faults for round_ in rounds):
            return rounds
        faulty = rounds
    return faulty


async def _count_served(endpoint: Endpoint, step_seconds: float) -> float:
    """Number of clients' requests that the engine works on, or has waiting. 0: it does not work, or has no counters."""
    try:
        earlier = await endpoint.counters()
        await asyncio.sleep(step_seconds)
        counters = await endpoint.counters()
    except HttpError:
        return 0
    if earlier is None or counters is None or counters.work == earlier.work:
        return 0
    return counters.running + counters.waiting


async def run_rounds(
    endpoint: Endpoint, capabilities: Capabilities, seconds: float, *, short: bool = False
) -> AsyncIterator[Round]:
    """Every round, as it ends. A round of completions of which none was answered is the last one.

    `seconds`: for each completion. `short`: end after the repeated prompts and log-probabilities.
    """
    for round_ in await _repeat_prompt(endpoint, seconds):
        yield round_
        if round_.tokens_per_second is None:
            return
    yield await _score_texts(endpoint, capabilities, seconds)
    for name, batches in (("scored again", (PROMPTS[:1], PROMPTS[1:2])), ("same, 6 at once", (PROMPTS,))):
        yield await _compare_scores(endpoint, capabilities, seconds, name, batches)
    if short:
        return
    chat = await endpoint.has_chat(seconds)
    tokens = TOKENS
    for at_once in AT_ONCE:
        began = time.monotonic()
        requests = [_send_sampled(endpoint, prompt, tokens, seconds, chat=chat) for prompt in PROMPTS[:at_once]]
        answers = await asyncio.gather(*requests)
        faults = [find_fault(answer, tokens, chat=chat, thinks=capabilities.reasoning) for answer in answers]
        seconds_taken = time.monotonic() - began
        yield Round(f"{at_once} at once", at_once, _list_faults(*faults), _measure_rate(answers, seconds_taken))
        if at_once == 1:
            tokens = max(FEWEST_TOKENS, min(TOKENS, int(TOKENS * ALONE_SECONDS / max(seconds_taken, 0.01))))
        if all(answer.error for answer in answers):
            return
    if chat and capabilities.tools:
        yield await _call_tool(endpoint, seconds, thinks=capabilities.reasoning)
    if chat and capabilities.reasoning:
        yield await _try_reasoning(endpoint, seconds)
    yield await _fill_context(endpoint, capabilities.context_tokens, seconds)


async def _repeat_prompt(endpoint: Endpoint, seconds: float) -> tuple[Round, ...]:
    """Send GREEDY twice, and, unless nothing is answered, once more while other requests come and go."""
    began = time.monotonic()
    alone = [await _send_greedy(endpoint, seconds) for _ in range(2)]
    if all(answer.error.startswith("HTTP 404") or DIFFUSION in answer.error for answer in alone):
        return (Round("same prompt twice", 0, skipped=f"no text, or by diffusion: {alone[0].error}"),)
    alone_faults = _list_faults(*(find_end_fault(answer, GREEDY_TOKENS) for answer in alone), find_difference(alone))
    rate = _measure_rate(alone, time.monotonic() - began)
    alone_round = Round("same prompt twice", 2, alone_faults, rate, late=_are_late(alone, alone_faults))
    if alone_round.tokens_per_second is None:
        return (alone_round,)
    began = time.monotonic()
    repeated, others = await _send_among_others(endpoint, seconds)
    rate = _measure_rate([*others, repeated], time.monotonic() - began)
    faults = [find_fault(answer, tokens) for answer, tokens in zip(others, OTHERS_TOKENS, strict=True)]
    faults += [find_end_fault(repeated, GREEDY_TOKENS), "" if alone_faults else find_difference([*alone, repeated])]
    late = _are_late([*others, repeated], listed := _list_faults(*faults))
    return alone_round, Round("same, among others", len(others) + 1, listed, rate, late=late)


async def _send_among_others(endpoint: Endpoint, seconds: float) -> tuple[Answer, list[Answer]]:
    """Send GREEDY while four others come and go, after the second of them. Returns its answer, and theirs."""

    async def join(number: int, tokens: int) -> Answer:
        await asyncio.sleep(number * CHURN_SECONDS)
        return await _send_sampled(endpoint, PROMPTS[number], tokens, seconds, chat=False)

    async def repeat() -> Answer:
        await asyncio.sleep(1.5 * CHURN_SECONDS)
        return await _send_greedy(endpoint, seconds)

    repeated, *others = await asyncio.gather(repeat(), *(join(*other) for other in enumerate(OTHERS_TOKENS)))
    return repeated, others


async def _score_texts(endpoint: Endpoint, capabilities: Capabilities, seconds: float) -> Round:
    """Compare the log-probabilities of known texts with those of chance, and with what the recipe expects."""
    name = "known texts"
    if skipped := capabilities.texts_skipped or capabilities.scores_skipped:
        return Round(name, 0, skipped=skipped)
    try:
        scored = [await endpoint.score(text, seconds, SCORE) for text in TEXTS]
        mean, fault = find_nonsense(scored, capabilities.text_logprob)
    except (HttpError, ValueError) as error:
        return _make_failed(name, error)
    return Round(name, len(TEXTS), _list_faults(fault), note=f"{mean:.2f} a token")


async def _compare_scores(
    endpoint: Endpoint, capabilities: Capabilities, seconds: float, name: str, batches: Sequence[Sequence[str]]
) -> Round:
    """Send the prompts of a batch at once, then score each answer alone, as a prompt without cached prefix."""
    if capabilities.scores_skipped:
        return Round(name, 0, skipped=capabilities.scores_skipped)
    gaps = []
    try:
        for prompts in batches:
            answers = await asyncio.gather(*(endpoint.score(prompt, seconds, WRITE) for prompt in prompts))
            gaps += [find_gap(answer, await endpoint.score(answer.all_ids, seconds, SCORE)) for answer in answers]
    except (HttpError, ValueError) as error:
        return _make_failed(name, error)
    note = f"up to {max(gap for gap, _ in gaps):.3f} nats a token apart"
    return Round(name, len(gaps), _list_faults(*(fault for _, fault in gaps)), note=note)


def _make_failed(name: str, error: HttpError | ValueError) -> Round:
    """The round that an error ended: skipped where the engine reports no such log-probabilities, else faulty."""
    if isinstance(error, UnscoredError):
        return Round(name, 0, skipped=str(error))
    return Round(name, 1, (f"a completion failed: {error}",), late=isinstance(error, LateError))


def _list_faults(*faults: str) -> tuple[str, ...]:
    """The faults, without empty texts."""
    return tuple(filter(None, faults))


async def _take_answer(request: Awaitable[Answer]) -> Answer:
    """The answer, or the reason why there is none as its error."""
    try:
        return await request
    except (HttpError, ValueError) as error:
        return Answer(error=str(error), late=isinstance(error, LateError))


def _are_late(answers: Sequence[Answer], faults: Sequence[str]) -> bool:
    """Whether lateness is the only fault of the answers."""
    return 0 < len(faults) == sum(answer.late for answer in answers)


async def _send_greedy(endpoint: Endpoint, seconds: float) -> Answer:
    return await _take_answer(endpoint.generate(GREEDY, GREEDY_TOKENS, seconds, {"temperature": 0}))


async def _send_sampled(endpoint: Endpoint, prompt: str, tokens: int, seconds: float, *, chat: bool) -> Answer:
    """Send a prompt at temperature 1, and again where no text comes.

    A model with random weights may begin with the end; a broken one never has any text.
    """
    sampling = {"temperature": 1, "top_p": 0.95, "min_tokens": 4}
    send = endpoint.chat if chat else endpoint.generate
    answer = await _take_answer(send(prompt, tokens, seconds, sampling))
    if answer.error or (answer.text or answer.reasoning).strip():
        return answer
    return await _take_answer(send(prompt, tokens, seconds, sampling))


def _measure_rate(answers: Sequence[Answer], seconds: float) -> float | None:
    """Tokens per second of all answers together; None where nothing was answered."""
    if all(answer.error for answer in answers):
        return None
    return sum(answer.tokens or 0 for answer in answers) / max(seconds, 1e-3)


async def _call_tool(endpoint: Endpoint, seconds: float, *, thinks: bool) -> Round:
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": TOOL, "description": "Weather of a city", "parameters": place}}
    prompt, tokens = f"What is the weather in Berlin now? Call {TOOL}.", 2 * TOKENS
    answer = await _take_answer(endpoint.chat(prompt, tokens, seconds, {"tools": [tool]}))
    fault = find_fault(answer, tokens, chat=True, thinks=thinks, tool=TOOL)
    note = "" if answer.calls or fault else "it made no call: a weak model may not"
    return Round("tool call", 1, _list_faults(fault), note=note)


async def _try_reasoning(endpoint: Endpoint, seconds: float) -> Round:
    options = {"temperature": 1, "top_p": 0.95, "chat_template_kwargs": {"thinking": True, "enable_thinking": True}}
    answer = await _take_answer(endpoint.chat(PROMPTS[0], TOKENS, seconds, options))
    fault = find_fault(answer, TOKENS, chat=True, thinks=True)
    note = "" if answer.reasoning or fault else "no reasoning field: a model that does not reason has none"
    return Round("reasoning", 1, _list_faults(fault), note=note)


async def _fill_context(endpoint: Endpoint, planned: int | None, seconds: float) -> Round:
    """Send a prompt of the whole context; a shorter one where a first prompt shows that it would take over a minute.

    `planned`: tokens of the context by the plan, which is compared with the engine's; None where it has none.
    """
    name = "context"
    try:
        limit = await endpoint.context_tokens()
        tokens = await endpoint.tokenize(f"{time.time_ns()} {' '.join(PROMPTS)}")
    except (HttpError, ValueError) as error:
        return Round(name, 0, note=f"not tested: {error}")
    if planned is not None and limit != planned:
        return Round(name, 1, (f"the engine accepts {limit:,} tokens, the plan has {planned:,}",))
    whole = limit - CONTEXT_ANSWER_TOKENS
    length = max(1, min(2048, whole // 2))
    began = time.monotonic()
    answer = await _send_long(endpoint, tokens, length, seconds)
    whole_seconds = GROWTH * (time.monotonic() - began) / length * whole
    longest = whole if whole_seconds <= PREFILL_SECONDS else max(length, int(whole * SHORTENED_SECONDS / whole_seconds))
    if not answer.error and longest > length:
        # With another first token, no cached prefix is used.
        length, answer = longest, await _send_long(endpoint, [*tokens[1:], tokens[0]], longest, 2 * PREFILL_SECONDS)
    fault = find_end_fault(answer, CONTEXT_ANSWER_TOKENS)
    if not fault and answer.prompt_tokens not in (None, length):
        fault = f"of a prompt of {length:,} tokens the engine read {answer.prompt_tokens:,}"
    note = f"{length:,} of {limit:,} tokens in"
    if length < whole:
        note += f"; all of them would take some {whole_seconds:.0f} s"
    return Round(name, 1, (f"a prompt of {length:,} tokens: {fault}",) if fault else (), note=note)


async def _send_long(endpoint: Endpoint, tokens: Sequence[int], length: int, seconds: float) -> Answer:
    """Send `tokens` again and again, as one prompt of `length` tokens."""
    prompt = (list(tokens) * (length // len(tokens) + 1))[:length]
    return await _take_answer(endpoint.generate(prompt, CONTEXT_ANSWER_TOKENS, seconds, {"temperature": 0}))
