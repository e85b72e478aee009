"""The smoke test: short completions one by one and at once, whose answers show broken weights or kernels.

Logits that are NaN give token 0 for ever: "!!!!" with most tokenizers, nothing where that is a special token.
The log-probabilities of known texts, and of the engine's own answers, show well-formed nonsense.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping, Sequence

from msgspec import Struct, structs, toml

from sparkd.base.lib import read_data
from sparkd.base.lib.http_client import HttpError
from sparkd.base.vllm.answers import differ, find_end_fault, find_fault
from sparkd.base.vllm.api import Answer, Endpoint
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.logprobs import TEXT_LOGPROB, UnscoredError, find_gap, find_nonsense

TOKENS, FEWEST_TOKENS = 48, 16
GREEDY_TOKENS = 24
_TEXTS = toml.decode(read_data("known-texts.toml"), type=dict[str, tuple[str, ...]])
TEXTS, PROMPTS = _TEXTS["texts"], _TEXTS["prompts"]
SCORE: Mapping[str, object] = {"max_tokens": 1, "prompt_logprobs": 0}
WRITE: Mapping[str, object] = {"max_tokens": 16, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
UNSCORED = ("kv-sharing-fast-prefill", "kv-transfer-config", "kv-offloading-size")
"""Flags with which no prompt is scored. With the first, a prompt's log-probabilities end vLLM 0.19 to 0.33 by an
assertion. A connector may bring tokens of a prompt back, which then have no log-probabilities."""
ALONE_SECONDS = 2.0
"""Limit for one answer alone: if it takes longer, the answers of the next rounds are shorter."""
GREEDY = "1, 2, 3, 4, 5, 6, 7, 8,"
"""Sent at temperature 0. Its next token is certain enough that no rounding of a kernel changes it."""
AT_ONCE = (1, 2, 4, 6)
CHURN_SECONDS = 0.1
"""Pause between two requests that join the others."""
TOOL = "get_weather"
CONTEXT_ANSWER = 8
PREFILL_SECONDS, REACH_SECONDS = 60.0, 8.0
GROWTH = 1.5
"""Factor by which a long prompt is slower than in proportion: attention grows with depth."""


class Wanted(Struct, frozen=True):
    """What the engine can do by its plan, and what can be tested of it."""

    context_tokens: int | None = None
    tools: bool = False
    reasoning: bool = False
    senseless: str = ""
    """Why known texts mean nothing to the engine's weights; empty where they do."""
    text_logprob: float | None = None
    """The expected mean log-probability of a token in known texts."""
    unscored: str = ""
    """Why no log-probability of a prompt may be requested; empty where it may."""


def from_plan(
    argv: Iterable[str],
    expect: Mapping[str, object],
    context_tokens: int | None = None,
    *,
    random_weights: bool = False,
) -> Wanted:
    """Read what the engine can do off its command line. `expect`: the recipe's table."""
    flags = first_values(argv)
    is_random = random_weights or flags.get("load-format") == "dummy"
    senseless = "the weights are random, by the recipe" if is_random else ""
    known = expect.get(TEXT_LOGPROB)
    text_logprob = float(known) if isinstance(known, int | float) else None
    unscored = next((f"{flag} has none of prompts" for flag in UNSCORED if flag in flags), "")
    if "logits" in (flags.get("logprobs-mode") or ""):
        unscored = "logprobs-mode is of logits"
    tools, reasoning = "tool-call-parser" in flags, "reasoning-parser" in flags
    return Wanted(context_tokens, tools, reasoning, senseless, text_logprob, unscored)


class Round(Struct, frozen=True):
    name: str
    answers: int
    faults: tuple[str, ...] = ()
    tokens_per_second: float | None = None
    note: str = ""
    skipped: str = ""
    """Why nothing was tested, which is neither good nor bad; empty where it was."""


async def run(endpoint: Endpoint, wanted: Wanted, seconds: float) -> list[Round]:
    """Run the short form: a few completions, and log-probabilities. `seconds`: for each completion.

    A fault here refuses the plan. So all is tried once more before a fault counts: healthy models write an odd answer
    now and then, broken weights and kernels always.
    """
    for _ in range(2):
        rounds = [round_ async for round_ in run_all(endpoint, wanted, seconds, short=True)]
        if not any(round_.faults for round_ in rounds):
            break
    return rounds


async def _run_by_logprobs(name: str, test: Coroutine[object, object, Round], skipped: str) -> Round:
    """Run a round that reads log-probabilities, unless it is skipped."""
    if skipped:
        test.close()
        return Round(name, 0, skipped=skipped)
    try:
        return structs.replace(await test, name=name)
    except UnscoredError as error:
        return Round(name, 0, skipped=str(error))
    except (HttpError, ValueError) as error:
        return Round(name, 1, (f"a completion failed: {error}",))


async def _score_texts(endpoint: Endpoint, wanted: Wanted, seconds: float) -> Round:
    texts = [await endpoint.score(text, seconds, SCORE) for text in TEXTS]
    mean, fault = find_nonsense(texts, wanted.text_logprob)
    return Round("", len(TEXTS), _list_faults(fault), note=f"{mean:.2f} a token")


async def _compare_scores(endpoint: Endpoint, batches: Sequence[Sequence[str]], seconds: float) -> Round:
    """Send the prompts of a batch at once, then score each answer alone, as a prompt without cached prefix."""
    gaps = []
    for prompts in batches:
        answers = await asyncio.gather(*(endpoint.score(prompt, seconds, WRITE) for prompt in prompts))
        gaps += [find_gap(answer, await endpoint.score(answer.ids, seconds, SCORE)) for answer in answers]
    note = f"up to {max(gap for gap, _ in gaps):.3f} nats a token apart"
    return Round("", len(gaps), _list_faults(*(fault for _, fault in gaps)), note=note)


def _list_faults(*faults: str) -> tuple[str, ...]:
    """The faults, without empty texts."""
    return tuple(filter(None, faults))


async def run_all(endpoint: Endpoint, wanted: Wanted, seconds: float, *, short: bool = False) -> AsyncIterator[Round]:
    """Every round, as it ends. A round in which no request was answered is the last one."""
    for round_ in await _repeat_prompt(endpoint, seconds):
        yield round_
        if round_.faults and round_.tokens_per_second is None:
            return
    async for round_ in _score_all(endpoint, wanted, seconds):
        yield round_
    if short:
        return
    chat = await endpoint.has_chat(seconds)
    tokens = TOKENS
    for at_once in AT_ONCE:
        began = time.monotonic()
        requests = [_send_sampled(endpoint, prompt, tokens, seconds, chat=chat) for prompt in PROMPTS[:at_once]]
        answers = await asyncio.gather(*requests)
        faults = [find_fault(answer, tokens, chat=chat, thinks=wanted.reasoning) for answer in answers]
        seconds_taken = time.monotonic() - began
        yield Round(f"{at_once} at once", at_once, _list_faults(*faults), _measure_rate(answers, seconds_taken))
        if at_once == 1:
            tokens = max(FEWEST_TOKENS, min(TOKENS, int(TOKENS * ALONE_SECONDS / max(seconds_taken, 0.01))))
        if all(answer.error for answer in answers):
            return
    if chat and wanted.tools:
        yield await _call_tool(endpoint, seconds, thinks=wanted.reasoning)
    if chat and wanted.reasoning:
        yield await _try_reasoning(endpoint, seconds)
    yield await _fill_context(endpoint, wanted.context_tokens, seconds)


async def _score_all(endpoint: Endpoint, wanted: Wanted, seconds: float) -> AsyncIterator[Round]:
    yield await _run_by_logprobs(
        "known texts", _score_texts(endpoint, wanted, seconds), wanted.senseless or wanted.unscored
    )
    for name, batches in (("scored again", (PROMPTS[:1], PROMPTS[1:2])), ("same, 6 at once", (PROMPTS,))):
        yield await _run_by_logprobs(name, _compare_scores(endpoint, batches, seconds), wanted.unscored)


async def _repeat_prompt(endpoint: Endpoint, seconds: float) -> tuple[Round, ...]:
    """Send one prompt twice at temperature 0, and once while other requests come and go."""
    began = time.monotonic()
    answers = [await _send_greedy(endpoint, seconds) for _ in range(2)]
    first_faults = _list_faults(*(find_end_fault(answer, GREEDY_TOKENS) for answer in answers), differ(answers))
    first_round = Round("same prompt twice", 2, first_faults, _measure_rate(answers, time.monotonic() - began))
    if all(answer.error for answer in answers):
        return (first_round,)
    began = time.monotonic()

    async def join(number: int) -> Answer:
        await asyncio.sleep(number * CHURN_SECONDS)
        return await _send_sampled(endpoint, PROMPTS[number], FEWEST_TOKENS + 2 * number, seconds, chat=False)

    async def repeat() -> Answer:
        await asyncio.sleep(1.5 * CHURN_SECONDS)
        return await _send_greedy(endpoint, seconds)

    repeated, *others = await asyncio.gather(repeat(), *(join(number) for number in range(4)))
    faults = [find_fault(answer, FEWEST_TOKENS + 2 * number) for number, answer in enumerate(others)]
    faults += [find_end_fault(repeated, GREEDY_TOKENS), "" if first_faults else differ([*answers, repeated])]
    rate = _measure_rate([*others, repeated], time.monotonic() - began)
    return first_round, Round("same, among others", 5, _list_faults(*faults), rate)


async def _take_answer(request: Awaitable[Answer]) -> Answer:
    """The answer, or the reason why there is none as its error."""
    try:
        return await request
    except (HttpError, ValueError) as error:
        return Answer(error=str(error))


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
    """Send a prompt of the whole context; a shorter one where a first prompt shows that it would take over a minute."""
    title = "context"
    try:
        limit = await endpoint.context_tokens()
        tokens = await endpoint.tokenize(f"{time.time_ns()} {' '.join(PROMPTS)}")
    except (HttpError, ValueError) as error:
        return Round(title, 0, note=f"not tested: {error}")
    if planned is not None and limit != planned:
        return Round(title, 1, (f"the engine accepts {limit:,} tokens, the plan has {planned:,}",))
    whole = limit - CONTEXT_ANSWER
    length = max(1, min(2048, whole // 2))
    began = time.monotonic()
    answer = await _send_long(endpoint, tokens, length, seconds)
    expected = GROWTH * (time.monotonic() - began) / length * whole
    reachable = whole if expected <= PREFILL_SECONDS else max(length, int(whole * REACH_SECONDS / expected))
    if not answer.error and reachable > length:
        # With another first token, no cached prefix is used.
        length, answer = reachable, await _send_long(endpoint, [*tokens[1:], tokens[0]], reachable, 2 * PREFILL_SECONDS)
    fault = find_end_fault(answer, CONTEXT_ANSWER)
    if not fault and answer.prompt_tokens not in (None, length):
        fault = f"of a prompt of {length:,} tokens the engine read {answer.prompt_tokens:,}"
    note = f"{length:,} of {limit:,} tokens in"
    if length < whole:
        note += f"; all of them would take some {expected:.0f} s"
    return Round(title, 1, (f"a prompt of {length:,} tokens: {fault}",) if fault else (), note=note)


async def _send_long(endpoint: Endpoint, tokens: Sequence[int], length: int, seconds: float) -> Answer:
    prompt = (list(tokens) * (length // len(tokens) + 1))[:length]
    return await _take_answer(endpoint.generate(prompt, CONTEXT_ANSWER, seconds, {"temperature": 0}))
