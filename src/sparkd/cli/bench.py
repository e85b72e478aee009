"""`sparkd bench`: how fast this node's endpoint answers, beside the recipe's figures and this node's usual ones."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import time
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace

from sparkd import __version__
from sparkd.actions import files
from sparkd.cli import bench_table, console
from sparkd.cli.endpoint import context_tokens
from sparkd.cli.history import keep, read_rows
from sparkd.cli.served import Served, open_endpoint, report_progress
from sparkd.cli.soak import LONGEST_SECONDS, SHORTEST_SECONDS, soak
from sparkd.cli.use import parse_time
from sparkd.host import Host
from sparkd.lib.errors import EngineEndedError, ExitCode, UsageError
from sparkd.lib.http_client import HttpError
from sparkd.measure.bench import Result, Wanted, measure
from sparkd.measure.figures import DECODE, Depth, Level
from sparkd.measure.past import describe_slower, find_runs, find_usual
from sparkd.recipes.schema import Recipe
from sparkd.state.history import Bench
from sparkd.status.model import utc_now
from sparkd.vllm.streaming import StreamError

CONCURRENCY, DEPTHS = (1, 2, 4, 8), (2048, 8192, 32768)
MOST_AT_ONCE, MOST_TOKENS, MOST_RUNS = 256, 1 << 20, 100
SPARE_TOKENS = 32
"""Of the context: a prompt's length is met to within a few tokens."""
ENDS = (signal.SIGTERM, signal.SIGHUP)
_LIST = re.compile(r"[0-9]{1,7}(?:,[0-9]{1,7}){0,15}")


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--concurrency", metavar="LIST", help="numbers of requests at once; the recipe's, else 1,2,4,8")
    parser.add_argument(
        "--depth", metavar="LIST", help="lengths of long prompts; 2048,8192,32768 where they fit, 0: none"
    )
    parser.add_argument("--prompt", metavar="TOKENS", default="128", help="length of the other prompts (128)")
    parser.add_argument("--answer", metavar="TOKENS", default="128", help="length of each answer (128)")
    parser.add_argument("--runs", metavar="N", default="3", help="batches of each number of requests (3)")
    parser.add_argument(
        "--staggered", action="store_true", help="requests that arrive one after the other, as a Poisson process"
    )
    parser.add_argument("--soak", metavar="TIME", help="send requests for so long, such as 8h, and judge the memory")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print tables to paste")
    parser.set_defaults(run=bench)


def bench(args: argparse.Namespace) -> int:
    given = read_numbers(args)
    soak_seconds = parse_time("--soak", args.soak, SHORTEST_SECONDS, LONGEST_SECONDS) if args.soak else 0
    if soak_seconds and (args.markdown or args.depth or args.staggered):
        raise UsageError("--soak takes --concurrency, --prompt, --answer and --json alone")
    with open_endpoint(MOST_AT_ONCE) as served, only_one():
        catch_ends()
        wanted = choose(given, served)
        if soak_seconds:
            return soak(served, wanted, soak_seconds, as_json=args.json)
        blank = start_result(served, wanted)
        try:
            found = run(served, wanted, blank)
        except (HttpError, StreamError) as error:
            raise EngineEndedError(f"the endpoint did not answer: {error}", "sparkd status") from None
    report(args, found, served)
    if found.interrupted:
        return 130
    return ExitCode.ENGINE_ENDED if found.fault else ExitCode.GOOD


def report(args: argparse.Namespace, found: Result, served: Served) -> None:
    """Print it beside what is expected and what is usual, and keep it where it is whole."""
    rows, row = read_rows(), make_row(found, served)
    whole = bool(found.levels) and not found.interrupted and not found.fault
    usual, slower = find_usual(found, find_runs(rows)), describe_slower(find_runs((*rows, row))) if whole else ()
    expect = served.node.recipe.expect
    if args.json:
        shown = {"schema": 1, **msgspec.to_builtins(found), "slower": slower}
        print(msgspec.json.format(msgspec.json.encode(shown), indent=1).decode())
    elif args.markdown:
        print("\n".join((bench_table.markdown(found, expect, usual), *slower)))
    else:
        console.show((*bench_table.tables(found, expect, usual), *slower))
    if whole:
        keep(row)


def only_one() -> AbstractContextManager[None]:
    """Two would measure each other's load."""
    return files.locked(Path("/"), "run/sparkd/bench.lock", "`sparkd bench` or `tune-recipe`")


def catch_ends() -> None:
    """Also end of a session or by a service manager as by Ctrl-C: with the results."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        for one in ENDS:  # a session's end sends both
            signal.signal(one, signal.SIG_IGN)
        handler = signal.getsignal(signal.SIGINT)  # asyncio's, while a loop runs; none where a shell's `&` ignores it
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    for one in ENDS:
        if signal.getsignal(one) is signal.SIG_DFL:  # not under nohup
            signal.signal(one, interrupt)


def read_numbers(args: argparse.Namespace) -> Wanted:
    """As given; empty lists where the defaults are to be chosen. Raises UsageError."""

    def numbers(name: str, text: str, most: int, least: int = 1) -> tuple[int, ...]:
        values = tuple(int(one) for one in text.split(",")) if _LIST.fullmatch(text) else ()
        if not values or not all(least <= one <= most for one in values):
            raise UsageError(f"--{name}: needed are numbers from {least} to {most}, such as 1,2,4")
        return values

    def number(name: str, most: int) -> int:
        values = numbers(name, getattr(args, name), most)
        if len(values) > 1:
            raise UsageError(f"--{name}: needed is one number from 1 to {most}")
        return values[0]

    return Wanted(
        concurrency=numbers("concurrency", args.concurrency, MOST_AT_ONCE) if args.concurrency else (),
        depths=numbers("depth", args.depth, MOST_TOKENS, 0) if args.depth else (),
        prompt_tokens=number("prompt", MOST_TOKENS),
        answer_tokens=number("answer", MOST_TOKENS),
        runs=number("runs", MOST_RUNS),
        staggered=args.staggered,
        seed=time.time_ns(),
    )


def choose(given: Wanted, served: Served) -> Wanted:
    """With the defaults that fit the recipe and the context. Raises UsageError where the given lengths do not."""
    at_once = expected_levels(served.node.recipe) or CONCURRENCY
    context = context_tokens(served.node.plan, Host())
    most = (context or MOST_TOKENS) - given.answer_tokens - SPARE_TOKENS
    longest = max(given.prompt_tokens, *given.depths, 0)
    if longest > most:
        both = f"a prompt of {longest} tokens and an answer of {given.answer_tokens}"
        raise UsageError(
            f"{both} do not fit into {context or MOST_TOKENS} tokens", f"at most {max(most, 0)} for the prompt"
        )
    depths = given.depths or tuple(one for one in DEPTHS if context is None or one <= most)
    return replace(given, concurrency=given.concurrency or tuple(at_once), depths=tuple(filter(None, depths)))


def expected_levels(recipe: Recipe) -> list[int]:
    """Numbers of requests at once of which the recipe has figures, the least one first."""
    known = recipe.expect.get(DECODE)
    figures = [int(one) for one in known if re.fullmatch("[0-9]{1,3}", one)] if isinstance(known, dict) else []
    return sorted(one for one in figures if 1 <= one <= MOST_AT_ONCE)


def start_result(served: Served, wanted: Wanted) -> Result:
    return Result(
        made=utc_now(),
        node=served.report.node,
        recipe=served.node.plan.recipe,
        model=served.node.plan.served_name,
        plan=served.report.plan_digest,
        version=__version__,
        prompt_tokens=wanted.prompt_tokens,
        answer_tokens=wanted.answer_tokens,
    )


def run(served: Served, wanted: Wanted, result: Result) -> Result:
    """What there is, also after an interrupt or an error. Raises HttpError, StreamError where there is nothing."""
    found: list[Level | Depth] = []
    interrupted, fault = False, ""

    async def collect() -> None:
        async for one in measure(served.endpoint, wanted):
            found.append(one)
            report_progress(bench_table.progress(one))

    try:
        asyncio.run(collect())
    except KeyboardInterrupt:
        interrupted = True
    except (HttpError, StreamError, ValueError) as error:
        if not found:
            raise
        fault = str(error)
    levels = tuple(one for one in found if isinstance(one, Level))
    lost = next((one.fault for one in levels if one.failed == one.requests), "")
    depths = tuple(one for one in found if isinstance(one, Depth))
    return replace(result, levels=levels, depths=depths, interrupted=interrupted, fault=fault or lost)


def make_row(found: Result, served: Served) -> Bench:
    figures = msgspec.Raw(msgspec.json.encode(found))
    return Bench(uuid.uuid4().hex, found.made, served.report.launch_id, found.recipe, figures)
