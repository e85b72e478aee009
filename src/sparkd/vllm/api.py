"""Client of the engine's HTTP endpoint: health, served models, counters, completions."""

from __future__ import annotations

import re
from contextlib import suppress

from msgspec import Struct

from sparkd.lib.http_client import Admit, HttpClient
from sparkd.lib.text import parse_json

HEALTH_TIMEOUT_SECONDS = 5.0

_COUNTERS = {
    "running": b"vllm:num_requests_running",
    "waiting": b"vllm:num_requests_waiting",
    "prompt_tokens": b"vllm:prompt_tokens_total",
    "generation_tokens": b"vllm:generation_tokens_total",
    "iterations": b"vllm:iteration_tokens_total_count",
}
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
"""The second is its name before vLLM 0.10."""
_SAMPLE = re.compile(
    rb"\n(" + b"|".join(map(re.escape, (*_COUNTERS.values(), *_KV_USAGE))) + rb")(?:\{[^}\n]*\})? ([0-9.eE+]+)$",
    re.MULTILINE,
)
"""Starts with a newline, because `^` takes seven times as long on a page of 50 KB."""


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

    @property
    def work(self) -> tuple[float, ...]:
        """Differs from the last one's if a step has ended in between."""
        return self.prompt_tokens, self.generation_tokens, self.iterations, self.kv_usage, self.running, self.waiting

    @property
    def busy(self) -> bool:
        return self.running > 0 or self.waiting > 0


def parse_counters(metrics: bytes) -> Counters | None:
    """The counters of a /metrics page; None if one is missing (statistics disabled, another engine)."""
    sums = dict.fromkeys((*_COUNTERS.values(), *_KV_USAGE), 0.0)
    seen = set()
    for name, value in _SAMPLE.findall(b"\n" + metrics):
        try:
            sums[name] += float(value)
        except ValueError:
            return None
        seen.add(name)
    if not seen.issuperset(_COUNTERS.values()):
        return None
    kv_usage = sum(sums[name] for name in _KV_USAGE)
    return Counters(**{field: sums[name] for field, name in _COUNTERS.items()}, kv_usage=kv_usage)


class Completion(Struct, frozen=True):
    """The result of a one-token completion: whether the engine produced a token, or its error text."""

    token: bool
    said: str = ""


class KeyRefusedError(Exception):
    """The endpoint refused the API key, or requires one."""


class Endpoint:
    """Every request may raise HttpError."""

    def __init__(
        self, host: str, port: int, served_name: str, api_key: str | None = None, admit: Admit | None = None
    ) -> None:
        address = f"[{host}]" if ":" in host else host
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = HttpClient(f"http://{address}:{port}", headers=headers, admit=admit)
        self.served_name = served_name

    async def health(self) -> int:
        """Status of /health. 503: the engine is dead; 200: only the API server is known to run."""
        return (await self._http.request("/health", HEALTH_TIMEOUT_SECONDS)).status

    async def serves(self) -> tuple[str, ...]:
        """Names in /v1/models; () for an error or another answer. Raises KeyRefusedError."""
        answer = await self._http.request("/v1/models", HEALTH_TIMEOUT_SECONDS)
        if answer.status in (401, 403):
            raise KeyRefusedError
        if answer.status != 200:
            return ()
        with suppress(ValueError):
            match parse_json(answer.body):
                case {"data": [*models]}:
                    ids = (model.get("id") for model in models if isinstance(model, dict))
                    return tuple(one for one in ids if isinstance(one, str))
        return ()

    async def counters(self, timeout_seconds: float = HEALTH_TIMEOUT_SECONDS) -> Counters | None:
        answer = await self._http.request("/metrics", timeout_seconds)
        return parse_counters(answer.body) if answer.status == 200 else None

    async def complete(self, timeout_seconds: float) -> Completion:
        """Request one token. Detects a dead rank, with which /health stays 200."""
        body = {"model": self.served_name, "prompt": "1", "max_tokens": 1, "temperature": 0}
        answer = await self._http.request("/v1/completions", timeout_seconds, json=body)
        if answer.status != 200:
            return Completion(token=False, said=f"HTTP {answer.status} {_head(answer.body)}".strip())
        with suppress(ValueError):
            match parse_json(answer.body):
                case {"usage": {"completion_tokens": int(made)}}:
                    return Completion(token=made >= 1, said="" if made else "no token was made")
        return Completion(token=False, said=f"no completion: {_head(answer.body)}")


def _head(body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)
