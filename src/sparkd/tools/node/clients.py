"""What a client of the endpoint needs: its length of context, and a configuration for each of some programs. Pure."""

from __future__ import annotations

import json
import shlex
from string import Template
from typing import NamedTuple

from msgspec import Struct, toml

from sparkd.base.lib import read_data

ANSWER_TOKENS = 8192
"""Room for an answer in the snippets; a quarter of a context that is shorter than four of them."""
NO_KEY = "none"
"""Some programs refuse to start without a key, though the endpoint needs none."""
KEY_VARIABLE = "SPARK_API_KEY"
"""Not OPENAI_API_KEY: who has set that one to a key of OpenAI's would send it here, in clear."""


class Offer(NamedTuple):
    """The endpoint as its clients see it."""

    url: str
    """With /v1, as the clients of OpenAI's API want it."""
    model: str
    context_tokens: int | None
    """Of prompt and answer together; None where it is not known."""
    keyed: bool

    @property
    def answer_tokens(self) -> int | None:
        return min(ANSWER_TOKENS, self.context_tokens // 4) if self.context_tokens else None

    @property
    def prompt_tokens(self) -> int | None:
        """Beside a longer one vLLM 0.32 cuts the answer (finish_reason "length"), and older builds refuse it."""
        return self.context_tokens - self.answer_tokens if self.context_tokens and self.answer_tokens else None


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    limited_by: str
    """The setting that keeps prompt and answer within the context."""
    template: str


CLIENTS = toml.decode(read_data("clients.toml"), type=dict[str, Client])
"""By the name for `sparkd endpoint --client`."""


def snippet(name: str, offer: Offer) -> str:
    """The text for this client. Lines with a figure that is not known are left out. No key is in it."""
    body = {"model": offer.model, "max_tokens": offer.answer_tokens, "messages": [{"role": "user", "content": "Hello"}]}
    values: dict[str, object] = {
        "url": shlex.quote(offer.url),
        "body": shlex.quote(json.dumps({key: value for key, value in body.items() if value}, ensure_ascii=False)),
        "url_json": json.dumps(offer.url),
        "model_json": json.dumps(offer.model, ensure_ascii=False),
        "model_shell": shlex.quote(offer.model),
        "litellm_json": json.dumps(f"hosted_vllm/{offer.model}", ensure_ascii=False),
        "answer": offer.answer_tokens,
        "prompt": offer.prompt_tokens,
        "context": offer.context_tokens,
        "curl_key": f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if offer.keyed else "",
        "python_key": f'os.environ["{KEY_VARIABLE}"]' if offer.keyed else json.dumps(NO_KEY),
        "litellm_key": f"os.environ/{KEY_VARIABLE}" if offer.keyed else NO_KEY,
        "shell_key": f'"${KEY_VARIABLE}"' if offer.keyed else NO_KEY,
        "hermes_key": f"\n    key_env: {KEY_VARIABLE}" if offer.keyed else "",
        "continue_key": f"${{{{ secrets.{KEY_VARIABLE} }}}}" if offer.keyed else NO_KEY,
    }
    unknown = tuple(f"${key}" for key, value in values.items() if value is None)
    lines = CLIENTS[name].template.splitlines(keepends=True)
    return Template("".join(line for line in lines if not any(one in line for one in unknown))).substitute(values)
