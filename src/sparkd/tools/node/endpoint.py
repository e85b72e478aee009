"""The endpoint for its clients: its state, context and commands to try it, and configurations for some programs."""

import json
import shlex
from collections.abc import Iterator
from string import Template
from typing import NamedTuple

from msgspec import Struct, toml

from sparkd.base.host import Host, weights
from sparkd.base.lib import read_data
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.model import Phase, read_living_report
from sparkd.base.vllm.args import KEY_VARIABLE
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import parse_amount
from sparkd.base.vllm.lint.model import parse_limits

TEXT_LIMIT = 300


class State(NamedTuple):
    """The head's state, as this node's report has it."""

    serving: bool
    text: str


def request_lines(url: str, key_file: str) -> Iterator[str]:
    """A command that requests the list of models on the head. The key is no argument: every user can read those."""
    if key_file:
        yield f"sudo sed 's/^/Authorization: Bearer /' {shlex.quote(key_file)} |"
    yield f"curl {'-H @- ' * bool(key_file)}{shlex.quote(f'{url}/models')}"


def context_tokens(plan: LaunchPlan, host: Host) -> int | None:
    """Length of the context; None where a script of the user's own decides it, or neither flag nor model names it."""
    if plan.user_script:
        return None
    flag = first_values(plan.argv).get("max-model-len")
    return parse_amount(flag) if flag else parse_limits(weights.read_config(host.files, plan.model_path)).max_length


def read_state(host: Host) -> State:
    report = read_living_report(host.files)
    if report is None:
        return State(False, "no agent runs on this node: systemctl status sparkd-head")
    if (head := report.head) is None:
        return State(False, "the head does not answer: sparkd status")
    text = sanitize(": ".join(filter(None, (head.phase.value, head.message))), TEXT_LIMIT)
    return State(head.phase in (Phase.SERVING, Phase.DEGRADED), text)


ANSWER_TOKENS = 8192
"""Room for an answer in the snippets, but at most a quarter of the context."""
NO_KEY = "none"
"""Some programs refuse to start without a key, though the endpoint needs none."""


class Offer(NamedTuple):
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


def snippet(name: str, offer: Offer) -> str:
    """The configuration for a client, without a key. Lines with a figure that is not known are left out."""
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
    return Template("".join(line for line in lines if not any(word in line for word in unknown))).substitute(values)
