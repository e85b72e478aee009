"""What an engine can do by its command line, so that the smoke test requests no more of it."""

from collections.abc import Iterable, Mapping
from typing import Self

from msgspec import Struct

from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.logprobs import TEXT_LOGPROB

UNSCORED_FLAGS = ("kv-sharing-fast-prefill", "kv-transfer-config", "kv-offloading-size")
"""Flags with which no prompt is scored. With the first, a prompt's log-probabilities end vLLM 0.19 to 0.33 by an
assertion. A connector may bring tokens of a prompt back, which then have no log-probabilities."""


class Capabilities(Struct, frozen=True):
    """What the engine can do by its plan, and what can be tested of its answers."""

    context_tokens: int | None = None
    """Most tokens of prompt and answer together by the plan; None where the engine's own figure is not compared."""
    tools: bool = False
    """Whether it has a parser for calls of tools."""
    reasoning: bool = False
    """Whether it has a parser for reasoning."""
    texts_skipped: str = ""
    """Why known texts mean nothing to the engine's weights; empty where they do."""
    text_logprob: float | None = None
    """The mean log-probability of a token in known texts that the recipe expects; None where it expects none."""
    scores_skipped: str = ""
    """Why no log-probability of a prompt may be requested; empty where it may."""

    @classmethod
    def from_argv(
        cls,
        argv: Iterable[str],
        expect: Mapping[str, object],
        context_tokens: int | None = None,
        *,
        random_weights: bool = False,
    ) -> Self:
        """Read what the engine can do off its command line. `expect` and `random_weights`: as the recipe has them."""
        flags = first_values(argv)
        is_random = random_weights or flags.get("load-format") == "dummy"
        expected = expect.get(TEXT_LOGPROB)
        scores_skipped = next((f"{flag} has none of prompts" for flag in UNSCORED_FLAGS if flag in flags), "")
        if "logits" in (flags.get("logprobs-mode") or ""):
            scores_skipped = "logprobs-mode is of logits"
        return cls(
            context_tokens,
            tools="tool-call-parser" in flags,
            reasoning="reasoning-parser" in flags,
            texts_skipped="the weights are random, by the recipe" if is_random else "",
            text_logprob=float(expected) if isinstance(expected, int | float) else None,
            scores_skipped=scores_skipped,
        )
