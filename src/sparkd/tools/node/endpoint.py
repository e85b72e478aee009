"""The endpoint for its clients: its state, the length of its context, and commands to try it."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from sparkd.base.host import Host, weights
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.model import Phase, read_living_report
from sparkd.base.vllm.command import first_values
from sparkd.base.vllm.flag import parse_amount
from sparkd.base.vllm.lint.model import parse_limits


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
        return State(False, "no agent runs on this node: sparkd status")
    if (head := report.head) is None:
        return State(False, "the head does not answer: sparkd status")
    text = sanitize(": ".join(filter(None, (head.phase.value, head.message))), 300)
    return State(head.phase in (Phase.SERVING, Phase.DEGRADED), text)
