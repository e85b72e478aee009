"""`sparkd smoke`: test whether the answers of this node's endpoint make sense, alone and at once."""

import argparse
import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import utc_now
from sparkd.base.state.history import Smoke
from sparkd.base.vllm.smoke import Round
from sparkd.tools.cli import console
from sparkd.tools.measure import measuring
from sparkd.tools.node.served import CONNECTIONS, open_endpoint, run_smoke

COLUMNS = 80
"""Width of a line: a terminal's usual one."""
LEAST_CACHE_SHARE = 0.9
"""Share of the recipe's KV cache that is needed: with less, something else has the memory."""
MOST_FAULTS = 20
"""Faults that the history keeps of one test."""


def add_smoke(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = (
        "exit codes: 0 every answer makes sense, 12 some do not or the KV cache is too small, 10 nothing serves here, "
        "13 it does not answer"
    )
    parser.set_defaults(run=smoke)


def smoke(args: argparse.Namespace) -> int:
    began = time.monotonic()
    with open_endpoint(CONNECTIONS) as served:
        if not args.json:
            print(f"{'round':<20}{'answers':>7}{'bad':>5}{'tokens/s':>10}")
        rounds = asyncio.run(run_smoke(served) if args.json else run_smoke(served, show_round))
        cache_text, is_too_small = describe_cache(
            served.report.engine.kv_cache_tokens, served.node.plan.kv_cache_tokens
        )
        faults = tuple(sanitize(fault) for round_ in rounds for fault in round_.faults)
        recipe, launch = served.node.plan.recipe, served.report.launch_id
        measuring.keep(Smoke(uuid.uuid4().hex, utc_now(), launch, recipe, len(faults), faults[:MOST_FAULTS]))
    seconds = time.monotonic() - began
    if args.json:
        round_rows = msgspec.to_builtins(rounds)
        console.show_json(bad_outputs=len(faults), seconds=round(seconds, 1), kv_cache=cache_text, rounds=round_rows)
    else:
        print(f"KV cache            {cache_text}")
        skipped = sum(bool(round_.skipped) for round_ in rounds)
        print(f"bad outputs: {len(faults)}   ({seconds:.0f} s{f'; skipped: {skipped}' if skipped else ''})")
        for line in list_next(faults, served.node.plan.model_pull, is_too_small=is_too_small):
            print(line)
    return ExitCode.NOT_READY if faults or is_too_small else ExitCode.GOOD


def list_next(faults: Sequence[str], model_pull: str, *, is_too_small: bool) -> Iterator[str]:
    """Yield lines on what to do about a smoke test's faults. `model_pull`: the command that downloads its model."""
    if any(fault.startswith("known texts") for fault in faults):
        yield f"next: {model_pull}"
        yield "      or another image; if it should know no texts,"
        yield "      model.random_weights: true in its recipe"
    if is_too_small:
        yield "next: who has the memory: sparkd preflight --dry-run"


def show_round(round_: Round) -> None:
    print("\n".join(render_round(round_)), flush=True)


def render_round(round_: Round) -> list[str]:
    """The round's row, and a line for each bad answer or why it was skipped.

    Letters that take one column each fit into 80 columns.
    """
    rate = "-" if round_.tokens_per_second is None else f"{round_.tokens_per_second:.1f}"
    row = f"{round_.name:<20}{round_.answers:>7}{len(round_.faults):>5}{rate:>10}"
    if round_.note:
        row += "  " + sanitize(round_.note, COLUMNS - len(row) - 2)
    marked = [*(("bad", fault) for fault in round_.faults), *([("skipped", round_.skipped)] if round_.skipped else [])]
    return [row, *(f"  {mark}: {sanitize(text, COLUMNS - len(mark) - 4)}" for mark, text in marked)]


def describe_cache(tokens: int | None, expected: int | None) -> tuple[str, bool]:
    """The size of the engine's KV cache beside the plan's, and whether it is too small."""
    if tokens is None:
        return "not reported", False
    text = f"{tokens:,} tokens"
    if expected is None:
        return f"{text}; nothing known to hold it against", False
    is_too_small = tokens < LEAST_CACHE_SHARE * expected
    text += f", {tokens / expected:.0%} of the recipe's {expected:,}"
    return f"{text}; too few" if is_too_small else text, is_too_small
