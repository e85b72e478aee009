"""`sparkd endpoint`: what a client of the API needs, from the plan and this node's report; no root, no agent needed."""

import argparse
import os

from sparkd.base.cluster import membership
from sparkd.base.cluster.endpoint import find_key_file, find_url
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.vllm.args import KEY_VARIABLE
from sparkd.tools.cli import console
from sparkd.tools.node import endpoint
from sparkd.tools.node.clients import CLIENTS, ClientEndpoint, snippet

AT_HEAD = "a file of the head: run this there"


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print one JSON object, with every client's text")
    client_help = f"print its text: {', '.join(CLIENTS)}"
    formats.add_argument("--client", choices=sorted(CLIENTS), metavar="NAME", help=client_help)
    parser.set_defaults(run=show_endpoint)


def show_endpoint(args: argparse.Namespace) -> None:
    host = Host()
    node = membership.resolve_context(load_settings(os.environ), None, host)
    plan, (keyed, key_file) = node.plan, find_key_file(node)
    url, note = find_url(plan, host)
    offer = ClientEndpoint(url, plan.served_name, endpoint.context_tokens(plan, host), keyed)
    state = endpoint.read_state(host)
    if args.client:
        if keyed:
            print(f"# the key, from {key_file or AT_HEAD}: export {KEY_VARIABLE}=...")
        print(snippet(args.client, offer), end="")
    elif args.json:
        offer_fields = {**offer._asdict(), "answer_tokens": offer.answer_tokens, "prompt_tokens": offer.prompt_tokens}
        own = {"serving": state.serving, "state": state.text, "note": note, "key_file": key_file, "recipe": plan.recipe}
        texts = {name: snippet(name, offer) for name in CLIENTS}
        console.show_json(**own, **offer_fields, clients=texts)
    else:
        console.show([Table(_make_rows(offer, state, note, key_file))])


def _make_rows(offer: ClientEndpoint, state: endpoint.State, note: str, key_file: str) -> list[tuple[str, str]]:
    tokens, prompt, answer = offer.context_tokens, offer.prompt_tokens, offer.answer_tokens
    context = "not known: the engine takes it from the model"
    if tokens:
        context = f"{tokens:,} tokens, prompt and answer together: beside an answer of {answer:,} (max_tokens) at most "
        context += f"{prompt:,} of prompt; where that is longer, the answer is cut, by older vLLM refused (HTTP 400)"
    first_try, *more = endpoint.request_lines(offer.url, key_file) if key_file or not offer.keyed else (AT_HEAD,)
    clients = CLIENTS.items()
    rows = [
        ("url", offer.url),
        *([("", note)] if note else []),
        ("model", sanitize(offer.model)),
        ("context", context),
        ("key", key_file or (AT_HEAD if offer.keyed else "none: every client that reaches the port is answered")),
        ("try", first_try),
        *(("", line) for line in more),
        ("serving", f"{'yes' if state.serving else 'no'}: {state.text}"),
        *((f"--client {name}", f"{client.title}; limited by {client.limited_by}") for name, client in clients),
    ]
    return [(name.ljust(10), text) for name, text in rows]
