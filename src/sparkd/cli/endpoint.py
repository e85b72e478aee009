"""`sparkd endpoint`: what a client of the API needs, from the plan and this node's report; no root, no agent needed."""

from __future__ import annotations

import argparse
import json
import os
from typing import NamedTuple

from sparkd.cli import console
from sparkd.cluster import membership
from sparkd.cluster.membership import NodeContext
from sparkd.config import load_settings
from sparkd.host import Host, network, weights
from sparkd.lib.text import Table, sanitize
from sparkd.plan.model import LaunchPlan
from sparkd.status.model import NodeReport, Phase
from sparkd.status.report_file import read_living_report
from sparkd.vllm.args import API_KEY, LOOPBACK
from sparkd.vllm.clients import CLIENTS, KEY_VARIABLE, Offer, snippet
from sparkd.vllm.flag import first_values, parse_amount
from sparkd.vllm.lint.predicates import parse_limits

SCHEMA = 1
TEXT_LIMIT = 300
AT_HEAD = "a file of the head: run this there"


class State(NamedTuple):
    """Of the head, as this node's report has it."""

    serving: bool
    text: str


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object, with every client's text")
    form.add_argument("--client", choices=sorted(CLIENTS), metavar="NAME", help=f"print its text: {', '.join(CLIENTS)}")
    parser.set_defaults(run=show_endpoint)


def show_endpoint(args: argparse.Namespace) -> None:
    host = Host()
    node = membership.resolve_context(load_settings(os.environ), None, host)
    plan, (keyed, key_file) = node.plan, find_key(node)
    address, note = find_address(plan, host)
    shown = f"[{address}]" if ":" in address else address
    url = f"http://{shown}:{plan.api_port}/v1"
    offer = Offer(url, plan.served_name, context_tokens(plan, host), keyed)
    state = read_state(host)
    if args.client:
        if keyed:
            print(f"# the key, from {key_file or AT_HEAD}: export {KEY_VARIABLE}=...")
        print(snippet(args.client, offer), end="")
    elif args.json:
        fields = {**offer._asdict(), "answer_tokens": offer.answer_tokens, "prompt_tokens": offer.prompt_tokens}
        own = {"serving": state.serving, "state": state.text, "note": note, "key_file": key_file, "recipe": plan.recipe}
        texts = {name: snippet(name, offer) for name in CLIENTS}
        print(json.dumps({"schema": SCHEMA, **own, **fields, "clients": texts}, indent=1))
    else:
        console.show([Table(_rows(offer, state, note, key_file))])


def _rows(offer: Offer, state: State, note: str, key_file: str) -> list[tuple[str, str]]:
    whole, prompt, answer = offer.context_tokens, offer.prompt_tokens, offer.answer_tokens
    context = "not known: the engine takes it from the model"
    if whole:
        context = f"{whole:,} tokens, prompt and answer together: beside an answer of {answer:,} (max_tokens) at most "
        context += f"{prompt:,} of prompt; where that is longer, the answer is cut, by older vLLM refused (HTTP 400)"
    rows = [
        ("url", offer.url),
        *([("", note)] if note else []),
        ("model", sanitize(offer.model)),
        ("context", context),
        ("key", key_file or (AT_HEAD if offer.keyed else "none: every client that reaches the port is answered")),
        ("serving", f"{'yes' if state.serving else 'no'}: {state.text}"),
        *((f"--client {name}", f"{client.title}; limited by {client.limited_by}") for name, client in CLIENTS.items()),
    ]
    return [(name.ljust(10), text) for name, text in rows]


def find_address(plan: LaunchPlan, host: Host) -> tuple[str, str]:
    """Where clients reach the head, and what there is to know about that."""
    given = plan.api_host
    wildcard = given == LOOPBACK and first_values(plan.argv).get("host") not in (LOOPBACK, "localhost")
    if not wildcard:
        local = given in (LOOPBACK, "localhost", "::1")
        return given, "only the head itself reaches it: args.host of the recipe is that address" if local else ""
    if plan.node.rank:
        return plan.node.head_address, "the head's address on the fabric; for that on your network, run this there"
    if outward := network.source_address(host.files):
        return outward, ""
    return plan.node.address, "this node has no route to other networks: take the address that your clients reach"


def context_tokens(plan: LaunchPlan, host: Host) -> int | None:
    """None where a script of the user's own decides, and where neither flag nor model says."""
    if plan.user_script:
        return None
    flag = first_values(plan.argv).get("max-model-len")
    return parse_amount(flag) if flag else parse_limits(weights.read_config(host.files, plan.model_path)).max_length


def find_key(node: NodeContext) -> tuple[bool, str]:
    """Whether clients need a key, and the file that has it: a worker that follows its head knows of none."""
    files = {**node.recipe.secrets, **node.settings.engine.secrets}
    return API_KEY in files, files.get(API_KEY, "")


def read_state(host: Host) -> State:
    report = read_living_report(host.files)
    if report is None:
        return State(False, "no agent runs on this node: systemctl status sparkd-head")
    head = report if report.rank == 0 else _head_of(report)
    if head is None:
        return State(False, "the head does not answer: sparkd status")
    text = sanitize(": ".join(filter(None, (head.phase.value, head.message))), TEXT_LIMIT)
    return State(head.phase in (Phase.SERVING, Phase.DEGRADED), text)


def _head_of(report: NodeReport) -> NodeReport | None:
    return next((one.living for one in report.peers if one.rank == 0), None)
