"""`sparkd smoke`: whether the endpoint's answers make sense, alone and at once."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid

from msgspec.structs import asdict

from sparkd.lib.errors import ExitCode
from sparkd.lib.text import sanitize
from sparkd.measure.smoke import Round
from sparkd.recipes.schema import KV_CACHE_TOKENS
from sparkd.state.history import Smoke
from sparkd.status.model import utc_now
from sparkd.tools.measuring import keep
from sparkd.tools.served import CONNECTIONS, Served, collect, open_endpoint

SCHEMA = 1
COLUMNS = 80
MOST_FAULTS = 20
"""In the history."""
LEAST_SHARE = 0.9
"""Of the recipe's KV cache: with less, something else has the memory."""


def add_smoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "exit codes: 0 every answer makes sense, 12 some do not, 10 nothing serves here, 13 it does not answer"
    )
    parser.set_defaults(run=smoke)


def smoke(args: argparse.Namespace) -> int:
    began = time.monotonic()
    with open_endpoint(CONNECTIONS) as served:
        if not args.json:
            print(f"{'round':<20}{'answers':>7}{'bad':>5}{'tokens/s':>10}")
        rounds = asyncio.run(collect(served) if args.json else collect(served, show))
        cache = describe_cache(served)
        faults = tuple(sanitize(fault) for one in rounds for fault in one.faults)
        recipe, launch = served.node.plan.recipe, served.report.launch_id
        keep(Smoke(uuid.uuid4().hex, utc_now(), launch, recipe, len(faults), faults[:MOST_FAULTS]))
    bad, seconds = sum(len(one.faults) for one in rounds), time.monotonic() - began
    if args.json:
        found = {"schema": SCHEMA, "bad_outputs": bad, "seconds": round(seconds, 1), "kv_cache": cache}
        print(json.dumps({**found, "rounds": [asdict(one) for one in rounds]}, indent=1))
    else:
        print(f"KV cache            {cache}")
        print(f"bad outputs: {bad}   ({seconds:.0f} s)")
    return ExitCode.NOT_READY if bad else ExitCode.GOOD


def show(one: Round) -> None:
    print("\n".join(lines(one)), flush=True)


def lines(one: Round) -> list[str]:
    """A row, and one for each bad answer, within 80 columns where the words are letters of one column."""
    rate = "-" if one.tokens_per_second is None else f"{one.tokens_per_second:.1f}"
    row = f"{one.name:<20}{one.answers:>7}{len(one.faults):>5}{rate:>10}"
    if one.note:
        row += "  " + sanitize(one.note, COLUMNS - len(row) - 2)
    return [row, *(f"  bad: {sanitize(fault, COLUMNS - 7)}" for fault in one.faults)]


def describe_cache(served: Served) -> str:
    """The engine's KV cache beside the recipe's."""
    found, expected = served.report.engine.kv_cache_tokens, served.node.recipe.expect.get(KV_CACHE_TOKENS)
    if found is None:
        return "not reported"
    text = f"{found:,} tokens"
    if not isinstance(expected, int) or expected <= 0:
        return f"{text}; the recipe expects no figure"
    text += f", {found / expected:.0%} of the recipe's {expected:,}"
    return text + ("; too few" if found < LEAST_SHARE * expected else "")
