"""Client of the engine's HTTP endpoint: health, served models, counters, completions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from sparkd.base.lib.http_client import CONNECTIONS, Admit, HttpClient
from sparkd.base.lib.text import parse_json
from sparkd.base.vllm.counters import Counters, Drafts, parse_counters, parse_drafts
from sparkd.base.vllm.logprobs import ScoredChoice, UnscoredError, parse_scored
from sparkd.base.vllm.streaming import Streamed, excerpt, stream_completion

QUICK_SECONDS = 5.0
"""Limit of requests that the API server answers without a step of the engine."""
UNPROVABLE = "it answers neither /v1/completions nor /pooling"
"""The error of a model that makes neither text nor vectors or scores, such as one for speech."""
DIFFUSION = "supported with diffusion models"
"""In the error by which vLLM refuses such a model each temperature but 1, with HTTP 400 or, by some builds, 500."""
ANSWER_LIMIT_BYTES = 256 << 10
"""Limit of a completion: at most some hundred tokens are requested, and at most 256 at once."""


class Completion(Struct, frozen=True):
    """The result of a one-token completion: whether the engine produced a token, or pooled one, or its error text."""

    token: bool
    error: str = ""


class Answer(Struct, frozen=True):
    """The answer to a prompt, by a completion or a chat."""

    text: str = ""
    finish: str = ""
    tokens: int | None = None
    """The count in the server's usage; None where it has none."""
    prompt_tokens: int | None = None
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Function and arguments of each tool call."""
    error: str = ""
    """Why there is no answer."""
    late: bool = False
    """Whether it was not there in time."""


class KeyRefusedError(Exception):
    """The endpoint refused the API key, or requires one."""


class Endpoint:
    """The HTTP endpoint of one engine. Every request may raise HttpError. `more`: further fields of its body."""

    def __init__(
        self,
        host: str,
        port: int,
        served_name: str,
        api_key: str | None = None,
        admit: Admit | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        address = f"[{host}]" if ":" in host else host
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = HttpClient(f"http://{address}:{port}", headers=headers, admit=admit, connections=connections)
        self.served_name = served_name
        self._temperature = 0  # 1 once a model has refused that: each refusal is an error in the engine's log

    async def close(self) -> None:
        """Close the connections: no other event loop can use them."""
        await self._http.close()

    async def health(self, timeout_seconds: float = QUICK_SECONDS) -> int:
        """Status of /health. 503: the engine is dead; 200: only the API server is known to run."""
        answer = await self._http.request("/health", timeout_seconds)
        # Every path answers 503 while vLLM changes the number of its engines, which a client needs no key to request.
        return 200 if b"currently scaling" in answer.body else answer.status

    async def serves(self) -> tuple[str, ...]:
        """Names in /v1/models; () for an error or another answer. Raises KeyRefusedError."""
        answer = await self._http.request("/v1/models", QUICK_SECONDS)
        if answer.status in (401, 403):
            raise KeyRefusedError
        if answer.status != 200:
            return ()
        with suppress(ValueError):
            match parse_json(answer.body):
                case {"data": [*models]}:
                    ids = (model.get("id") for model in models if isinstance(model, dict))
                    return tuple(name for name in ids if isinstance(name, str))
        return ()

    async def counters(self, timeout_seconds: float = QUICK_SECONDS) -> Counters | None:
        answer = await self._http.request("/metrics", timeout_seconds)
        return parse_counters(answer.body) if answer.status == 200 else None

    async def drafts(self) -> Drafts | None:
        """Counts of drafts; None without a drafter."""
        answer = await self._http.request("/metrics", QUICK_SECONDS)
        return parse_drafts(answer.body) if answer.status == 200 else None

    async def stream(self, prompt: str, tokens: int, seconds: float) -> Streamed:
        """A completion with the times of its events. Raises StreamError, too."""
        return await stream_completion(self._http, self.served_name, prompt, tokens, seconds)

    async def complete(self, timeout_seconds: float) -> Completion:
        """Request one token. Detects a dead rank, with which /health stays 200."""
        body = {"model": self.served_name, "prompt": "1", "max_tokens": 1, "temperature": self._temperature}
        answer = await self._http.request("/v1/completions", timeout_seconds, json=body)
        if answer.status != 200 and DIFFUSION.encode() in answer.body:
            body["temperature"] = self._temperature = 1
            answer = await self._http.request("/v1/completions", timeout_seconds, json=body)
        if answer.status == 404:  # a model for embeddings or reranking makes no text
            body = {"model": self.served_name, "input": "1"}
            answer = await self._http.request("/pooling", timeout_seconds, json=body)
            if answer.status in (200, 404):
                return Completion(token=answer.status == 200, error="" if answer.status == 200 else UNPROVABLE)
        if answer.status != 200:
            return Completion(token=False, error=f"HTTP {answer.status} {excerpt(answer.body)}".strip())
        with suppress(ValueError):
            match parse_json(answer.body):
                case {"usage": {"completion_tokens": int(made)}}:
                    return Completion(token=made >= 1, error="" if made else "no token was made")
        return Completion(token=False, error=f"no completion: {excerpt(answer.body)}")

    async def generate(
        self, prompt: str | Sequence[int], tokens: int, seconds: float, more: Mapping[str, object]
    ) -> Answer:
        """A completion of text, or of numbers of tokens. Raises ValueError for another answer."""
        match await self._post("/v1/completions", seconds, {"prompt": prompt, "max_tokens": tokens, **more}):
            case {"choices": [{"text": str(text), "finish_reason": finish}, *_], **rest}:
                return Answer(text, str(finish), *_read_usage(rest))
        raise ValueError("no completion")

    async def score(self, prompt: str | Sequence[int], seconds: float, more: Mapping[str, object]) -> ScoredChoice:
        """A completion at temperature 0 with log-probabilities. Raises UnscoredError where the engine refuses that, and
        ValueError for another answer, also for NaN.
        """
        fields = {"model": self.served_name, "prompt": prompt, "temperature": 0, "repetition_penalty": 1, **more}
        answer = await self._http.request("/v1/completions", seconds, json=fields)
        if answer.status == 200:
            return parse_scored(answer.body)
        # NaN in its own answer is vLLM's fault, though it may come with status 400 too.
        refused = answer.status == 400 and b"Out of range float" not in answer.body
        raise (UnscoredError if refused else ValueError)(f"HTTP {answer.status} {excerpt(answer.body)}")

    async def chat(self, text: str, tokens: int, seconds: float, more: Mapping[str, object]) -> Answer:
        """The answer to one message of a user. Raises ValueError for another answer."""
        messages = [{"role": "user", "content": text}]
        match await self._post("/v1/chat/completions", seconds, {"messages": messages, "max_tokens": tokens, **more}):
            case {"choices": [{"message": {**message}, "finish_reason": finish}, *_], **rest}:
                content = _text_or_empty(message.get("content"))
                reasoning = _text_or_empty(message.get("reasoning") or message.get("reasoning_content"))
                return Answer(content, str(finish), *_read_usage(rest), reasoning, _read_calls(message))
        raise ValueError("no chat completion")

    async def has_chat(self, seconds: float) -> bool:
        """Whether the model has a chat template."""
        fields = {"model": self.served_name, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1}
        return (await self._http.request("/v1/chat/completions", seconds, json=fields)).status not in (400, 404)

    async def context_tokens(self) -> int:
        """The most tokens of prompt and answer together. Raises ValueError."""
        answer = await self._http.request("/v1/models", QUICK_SECONDS)
        match parse_json(answer.body):
            case {"data": [{"max_model_len": int(tokens)}, *_]} if tokens > 0:
                return tokens
        raise ValueError("/v1/models has no max_model_len")

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Numbers of the text's tokens. Raises ValueError."""
        match await self._post("/tokenize", QUICK_SECONDS, {"prompt": text, "add_special_tokens": False}):
            case {"tokens": [int(), *_] as tokens}:
                return tuple(token for token in tokens if isinstance(token, int))
        raise ValueError("/tokenize has no tokens")

    async def _post(self, path: str, seconds: float, fields: Mapping[str, object]) -> object:
        """The answer's JSON. Raises ValueError for another answer."""
        body = {"model": self.served_name, **fields}
        answer = await self._http.request(path, seconds, json=body, limit_bytes=ANSWER_LIMIT_BYTES)
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status} {excerpt(answer.body)}")
        return parse_json(answer.body)


def _read_usage(fields: Mapping[object, object]) -> tuple[int | None, int | None]:
    """Tokens of the answer, and of the prompt."""
    match fields.get("usage"):
        case {"completion_tokens": int(answer_tokens), **rest}:
            prompt_tokens = rest.get("prompt_tokens")
            return answer_tokens, prompt_tokens if isinstance(prompt_tokens, int) else None
    return None, None


def _read_calls(message: Mapping[object, object]) -> tuple[tuple[str, str], ...]:
    match message.get("tool_calls"):
        case [*calls]:
            functions = [call.get("function") for call in calls if isinstance(call, dict)]
            return tuple(
                (_text_or_empty(function.get("name")), _text_or_empty(function.get("arguments")))
                for function in functions
                if isinstance(function, dict)
            )
    return ()


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""
