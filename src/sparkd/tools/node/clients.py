"""Configurations for programs that use the endpoint, from the templates in clients.toml."""

import json
import shlex
from string import Template
from typing import NamedTuple

from msgspec import Struct, toml

from sparkd.base.lib import read_data
from sparkd.base.vllm.args import KEY_VARIABLE

ANSWER_TOKENS = 8192
"""Room for an answer in the snippets, but at most a quarter of the context."""
NO_KEY = "none"
"""Some programs refuse to start without a key, though the endpoint needs none."""


class ClientEndpoint(NamedTuple):
    """The endpoint as its clients see it."""

    url: str
    """The address with /v1, as the clients of OpenAI's API want it."""
    model: str
    context_tokens: int | None
    """Tokens of prompt and answer together; None where that is not known."""
    keyed: bool
    """Whether requests need a key."""

    @property
    def answer_tokens(self) -> int | None:
        return min(ANSWER_TOKENS, self.context_tokens // 4) if self.context_tokens else None

    @property
    def prompt_tokens(self) -> int | None:
        """Length of the longest prompt. With a longer one vLLM 0.32 truncates the answer (finish_reason "length"), and
        older builds refuse the request.
        """
        return self.context_tokens - self.answer_tokens if self.context_tokens and self.answer_tokens else None


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that may use the endpoint."""

    title: str
    limited_by: str
    """The setting that keeps prompt and answer within the context."""
    template: str


CLIENTS = toml.decode(read_data("clients.toml"), type=dict[str, Client])
"""Clients by their names for `sparkd endpoint --client`."""


def snippet(name: str, endpoint: ClientEndpoint) -> str:
    """The configuration for a client, without a key. Lines with a figure that is not known are left out."""
    body = {
        "model": endpoint.model,
        "max_tokens": endpoint.answer_tokens,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    values: dict[str, object] = {
        "url": shlex.quote(endpoint.url),
        "body": shlex.quote(json.dumps({key: value for key, value in body.items() if value}, ensure_ascii=False)),
        "url_json": json.dumps(endpoint.url),
        "model_json": json.dumps(endpoint.model, ensure_ascii=False),
        "model_shell": shlex.quote(endpoint.model),
        "litellm_json": json.dumps(f"hosted_vllm/{endpoint.model}", ensure_ascii=False),
        "answer": endpoint.answer_tokens,
        "prompt": endpoint.prompt_tokens,
        "context": endpoint.context_tokens,
        "curl_key": f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if endpoint.keyed else "",
        "python_key": f'os.environ["{KEY_VARIABLE}"]' if endpoint.keyed else json.dumps(NO_KEY),
        "litellm_key": f"os.environ/{KEY_VARIABLE}" if endpoint.keyed else NO_KEY,
        "shell_key": f'"${KEY_VARIABLE}"' if endpoint.keyed else NO_KEY,
        "hermes_key": f"\n    key_env: {KEY_VARIABLE}" if endpoint.keyed else "",
        "continue_key": f"${{{{ secrets.{KEY_VARIABLE} }}}}" if endpoint.keyed else NO_KEY,
    }
    unknown = tuple(f"${key}" for key, value in values.items() if value is None)
    lines = CLIENTS[name].template.splitlines(keepends=True)
    return Template("".join(line for line in lines if not any(word in line for word in unknown))).substitute(values)
