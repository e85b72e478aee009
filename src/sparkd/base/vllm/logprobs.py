"""Log-probabilities of tokens, as an engine reports them: of texts that every language model knows, and of its answers.

Weights or kernels that compute nonsense give known texts no better ones than chance does. A decode that reads another
request's KV cache writes what the same engine finds unlikely in a prompt.
"""

import math
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct, json

from sparkd.base.lib import prepared

MOST_OF_CHANCE = 0.8
"""Share of the log-probability of chance that known texts may have at most. Measured: SmolLM2 of 135 million
parameters with 4-bit weights 0.14, a model of 1.5 million that was trained on nothing but licences 0.65, random
weights 1.01 and more.
"""
MOST_WORSE = 0.1
"""Nats that a token may be below what the recipe expects. In bfloat16 SmolLM2 is off by less than 0.01. With rows of
one of its 30 layers permuted, or two neighbours swapped, it is off by over 0.1 in 37 of 39 cases, of which
MOST_OF_CHANCE finds three.
"""
MOST_APART = 0.5
"""Nats between decode and prefill, as the mean over an answer's 16 tokens. Measured with SmolLM2: bfloat16 up to 0.04,
an FP8 KV cache 0.07, NVFP4 0.15; with the KV cache or the rows of another request 0.9 to 4.5.
"""
TEXT_LOGPROB = "text_logprob"
"""Key in a recipe's `expect`: the mean log-probability of a token in known texts."""

TokenId = Annotated[int, Meta(ge=0, lt=1 << 24)]
Logprob = Annotated[float, Meta(le=1e-3)]


class UnscoredError(ValueError):
    """The engine reports no log-probabilities of this kind, which is no fault."""


class _Entry(Struct, frozen=True):
    logprob: Logprob


class _AnswerLogprobs(Struct, frozen=True):
    token_logprobs: tuple[Logprob, ...]


class ScoredChoice(Struct, frozen=True):
    """A choice of a completion with `prompt_logprobs` of 0, or with `logprobs` of 0 and `return_token_ids`."""

    prompt_logprobs: tuple[dict[TokenId, _Entry] | None, ...] | None = None
    prompt_token_ids: tuple[TokenId, ...] | None = None
    token_ids: tuple[TokenId, ...] | None = None
    logprobs: _AnswerLogprobs | None = None

    @property
    def all_ids(self) -> tuple[int, ...]:
        """Tokens of prompt and answer. Raises UnscoredError."""
        if self.prompt_token_ids is None or self.token_ids is None:
            raise UnscoredError("the engine does not report an answer's tokens")
        return self.prompt_token_ids + self.token_ids

    @property
    def prompt_tokens(self) -> list[tuple[int, float]]:
        """Id and log-probability of each token after the first. Raises ValueError."""
        if self.prompt_logprobs is None:
            raise UnscoredError("the engine reports no log-probabilities of prompts")
        positions = self.prompt_logprobs[1:]
        tokens = [(token_id, entry.logprob) for position in positions for token_id, entry in (position or {}).items()]
        if not tokens or len(tokens) != len(positions):
            raise ValueError(f"{len(tokens)} log-probabilities of {len(positions)} tokens")
        return tokens


class _Completion(Struct, frozen=True):
    choices: Annotated[tuple[ScoredChoice, ...], Meta(min_length=1)]


def parse_scored(body: bytes) -> ScoredChoice:
    """Read a completion. Raises ValueError, also for NaN."""
    return json.decode(body, type=prepared(_Completion)).choices[0]


def find_nonsense(texts: Iterable[ScoredChoice], expected: float | None) -> tuple[float, str]:
    """The mean log-probability of known texts, and what is wrong with it. Raises ValueError.

    Chance is that of a vocabulary which ends with the highest token seen: the real one is no smaller.
    """
    tokens = [token for text in texts for token in text.prompt_tokens]
    mean = sum(logprob for _, logprob in tokens) / len(tokens)
    chance = -math.log(2 + max(token_id for token_id, _ in tokens))
    if mean < MOST_OF_CHANCE * chance:
        return mean, f"known texts: {mean:.2f} a token, {MOST_OF_CHANCE * chance:.2f} needed, chance is {chance:.2f}"
    if expected is not None and mean < expected - MOST_WORSE:
        return mean, f"known texts: {mean:.2f} a token, the recipe expects {expected:.2f}"
    return mean, ""


def find_gap(answer: ScoredChoice, as_prompt: ScoredChoice) -> tuple[float, str]:
    """Mean distance of an answer's log-probabilities from those of its tokens as a prompt, and what is wrong with it.

    Single tokens are not compared: kernels of decode and prefill may differ much at a few. Raises ValueError.
    """
    prefilled, decoded = as_prompt.prompt_tokens, answer.logprobs.token_logprobs if answer.logprobs else ()
    if [token_id for token_id, _ in prefilled] != [*answer.all_ids[1:]] or not 0 < len(decoded) == len(
        answer.token_ids or ()
    ):
        raise ValueError("other tokens have log-probabilities than those of the answer")
    gap = sum(
        abs(decoded_at - prefilled_at)
        for decoded_at, (_, prefilled_at) in zip(decoded, prefilled[-len(decoded) :], strict=True)
    ) / len(decoded)
    return gap, "" if gap <= MOST_APART else f"an answer is {gap:.2f} nats off its own score, at most {MOST_APART}"
