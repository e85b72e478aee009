"""The engine's HTTP endpoint on this node: is it there, what does it serve, does it make tokens."""

from __future__ import annotations

import json
import re

from msgspec import Struct

from sparkd.host.http import HttpClient, Unanswered

HEALTH_TIMEOUT_SECONDS = 5.0

_COUNTERS = {
    "running": b"vllm:num_requests_running",
    "waiting": b"vllm:num_requests_waiting",
    "prompt_tokens": b"vllm:prompt_tokens_total",
    "generation_tokens": b"vllm:generation_tokens_total",
    "iterations": b"vllm:iteration_tokens_total_count",
}
_SAMPLE = re.compile(
    rb"^(" + b"|".join(re.escape(name) for name in _COUNTERS.values()) + rb")(?:\{[^}\n]*\})? ([0-9.eE+]+)$",
    re.MULTILINE,
)


class Counters(Struct, frozen=True):
    """What stands still when the engine hangs. Names as in vLLM's /metrics, summed over its engines."""

    running: float
    waiting: float
    prompt_tokens: float
    generation_tokens: float
    iterations: float

    @property
    def work(self) -> tuple[float, float, float]:
        return self.prompt_tokens, self.generation_tokens, self.iterations

    @property
    def busy(self) -> bool:
        return self.running > 0 or self.waiting > 0


def counters(metrics: bytes) -> Counters | None:
    """Read a /metrics page; None where it has not all of the counters (statistics switched off, another engine)."""
    sums = dict.fromkeys(_COUNTERS.values(), 0.0)
    seen = set()
    for name, value in _SAMPLE.findall(metrics):
        try:
            sums[name] += float(value)
        except ValueError:
            return None
        seen.add(name)
    if len(seen) < len(_COUNTERS):
        return None
    return Counters(**{field: sums[name] for field, name in _COUNTERS.items()})


class Completion(Struct, frozen=True):
    """A one-token completion: whether a token came, and what the engine said otherwise."""

    token: bool
    said: str = ""


class KeyRefusedError(Exception):
    """The endpoint wants a key, and another one than it was shown."""


class Endpoint:
    """Client of one engine, for one thread at a time. Every method may raise Unanswered."""

    def __init__(self, host: str, port: int, served_name: str, api_key: str | None = None) -> None:
        address = f"[{host}]" if ":" in host else host
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # vLLM closes a connection after five seconds, and is asked every five.
        self._http = HttpClient(f"http://{address}:{port}", headers=headers, tires=True)
        self._served_name = served_name

    def close(self) -> None:
        self._http.close()

    def health(self) -> int:
        """Status of /health: 503 says that the engine is dead; 200 says only that the API server is not."""
        return self._http.get("/health", HEALTH_TIMEOUT_SECONDS).status

    def serves(self) -> tuple[str, ...]:
        """Names in /v1/models; () where the answer is an error or no such list. Raises KeyRefusedError."""
        answer = self._http.get("/v1/models", HEALTH_TIMEOUT_SECONDS)
        if answer.status in (401, 403):
            raise KeyRefusedError
        if answer.status != 200:
            return ()
        try:
            listed = json.loads(answer.body)
        except ValueError:
            return ()
        match listed:
            case {"data": [*models]}:
                return tuple(
                    model["id"] for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)
                )
        return ()

    def counters(self, timeout_seconds: float = HEALTH_TIMEOUT_SECONDS) -> Counters | None:
        answer = self._http.get("/metrics", timeout_seconds)
        return counters(answer.body) if answer.status == 200 else None

    def complete(self, timeout_seconds: float) -> Completion:
        """Ask for one token. Proof of life: /health stays 200 with a dead rank, a completion does not."""
        body = {"model": self._served_name, "prompt": "1", "max_tokens": 1, "temperature": 0}
        answer = self._http.post_json("/v1/completions", body, timeout_seconds)
        if answer.status != 200:
            return Completion(token=False, said=f"HTTP {answer.status} {_head(answer.body)}".strip())
        try:
            made = json.loads(answer.body)["usage"]["completion_tokens"]
        except (ValueError, KeyError, TypeError):
            return Completion(token=False, said=f"no completion: {_head(answer.body)}")
        return Completion(token=isinstance(made, int) and made >= 1, said="no token was made" if not made else "")


def _head(body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)


__all__ = ["Completion", "Counters", "Endpoint", "KeyRefusedError", "Unanswered", "counters"]
