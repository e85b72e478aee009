"""Counters on an engine's /metrics page, summed over its engines: requests, tokens, cache, drafts. Pure."""

import re
from contextlib import suppress

from msgspec import Struct

_COUNTERS = {
    "running": b"vllm:num_requests_running",
    "waiting": b"vllm:num_requests_waiting",
    "prompt_tokens": b"vllm:prompt_tokens_total",
    "generation_tokens": b"vllm:generation_tokens_total",
    "iterations": b"vllm:iteration_tokens_total_count",
}
_OPTIONAL = {
    "prefix_queries": b"vllm:prefix_cache_queries_total",
    "prefix_hits": b"vllm:prefix_cache_hits_total",
    "drafted": b"vllm:spec_decode_num_draft_tokens_total",
    "accepted": b"vllm:spec_decode_num_accepted_tokens_total",
    "first_tokens": b"vllm:time_to_first_token_seconds_count",
    "first_token_seconds": b"vllm:time_to_first_token_seconds_sum",
}
"""Counters that are 0 where a page lacks them: those of drafts need a drafter."""
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
"""Names since and before vLLM 0.10."""
_NAMES = (*_COUNTERS.values(), *_OPTIONAL.values(), *_KV_USAGE)
_NUMBER = rb" ([0-9.]+(?:[eE][+-]?[0-9]+)?)$"
"""A value as Prometheus' client writes it: 2.6e-05 is a block of a large KV cache."""
_SAMPLE = re.compile(
    rb"\n(" + b"|".join(map(re.escape, _NAMES)) + rb")(?:\{[^\n]*\})?" + _NUMBER,
    re.MULTILINE,
)
"""Starts with a newline, because `^` takes seven times as long on a page of 50 KB."""

_DEFERRED = re.compile(
    rb'\nvllm:num_requests_waiting_by_reason\{[^\n]*\breason="deferred"[^\n]*\}' + _NUMBER, re.MULTILINE
)
_ASLEEP = re.compile(rb'\nvllm:engine_sleep_state\{[^\n]*\bsleep_state="awake"[^\n]*\} 0')
_DRAFTS = re.compile(
    rb"\nvllm:spec_decode_num_(drafts_total|accepted_tokens_per_pos_total)(?:\{([^\n]*)\})?" + _NUMBER,
    re.MULTILINE,
)
_POSITION = re.compile(rb'\bposition="(\d{1,3})"')


class Counters(Struct, frozen=True):
    """Values of vLLM's /metrics, summed over its engines. All of them are reported by the engine at the end of a step:
    one that hangs changes none, and one that hangs in its first step after idleness has no request running.
    """

    running: float
    waiting: float
    prompt_tokens: float
    generation_tokens: float
    iterations: float
    kv_usage: float = 0.0
    """While a long prompt is processed step by step, this moves and the counters of tokens do not (seen in 0.32)."""
    prefix_queries: float = 0.0
    prefix_hits: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    first_tokens: float = 0.0
    first_token_seconds: float = 0.0
    """Sum of the times to the first tokens."""
    deferred: float = 0.0
    """Those among `waiting` that no step helps: they need more audio of their client, a KV cache, or a LoRA's place."""
    asleep: bool = False
    """Whether a client has put it to sleep (vLLM's sleep mode): requests wait until one wakes it."""

    @property
    def work(self) -> tuple[float, ...]:
        """Counters that move with each step: they differ from earlier ones if a step has ended in between."""
        return self.prompt_tokens, self.generation_tokens, self.iterations, self.kv_usage, self.running, self.waiting

    @property
    def busy(self) -> bool:
        return self.running > 0 or self.waiting > self.deferred


def parse_counters(metrics: bytes) -> Counters | None:
    """The counters of a /metrics page; None if one is missing (statistics disabled, another engine)."""
    sums = dict.fromkeys(_NAMES, 0.0)
    samples = _SAMPLE.findall(b"\n" + metrics)
    try:
        for name, value in samples:
            sums[name] += float(value)
        deferred = sum(map(float, _DEFERRED.findall(b"\n" + metrics)))
    except ValueError:
        return None
    if not {name for name, _ in samples}.issuperset(_COUNTERS.values()):
        return None
    counters = {field: sums[name] for field, name in (_COUNTERS | _OPTIONAL).items()}
    kv_usage, asleep = sum(sums[name] for name in _KV_USAGE), _ASLEEP.search(metrics) is not None
    return Counters(**counters, kv_usage=kv_usage, deferred=deferred, asleep=asleep)


class Drafts(Struct, frozen=True):
    """Number of proposals of the drafter, and of accepted tokens at each position of a proposal."""

    proposed: float
    accepted: tuple[float, ...]


def parse_drafts(metrics: bytes) -> Drafts | None:
    """The drafts on a /metrics page, summed over its engines; None without a drafter."""
    proposed = 0.0
    accepted: dict[int, float] = {}
    for name, labels, value in _DRAFTS.findall(b"\n" + metrics):
        position = _POSITION.search(labels)
        with suppress(ValueError):
            if name == b"drafts_total":
                proposed += float(value)
            elif position and (place := int(position[1])) < 32:
                accepted[place] = accepted.get(place, 0.0) + float(value)
    if not accepted:
        return None
    return Drafts(proposed, tuple(accepted.get(place, 0.0) for place in range(max(accepted) + 1)))
