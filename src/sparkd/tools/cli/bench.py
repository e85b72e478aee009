"""`sparkd bench` and `warm`, which load this node's endpoint.

`bench` measures how fast it answers, beside the recipe's figures and this node's usual ones; with --soak it does so for
hours and judges the memory. `warm` has kernels compiled before clients wait for them.
"""

import argparse
import asyncio
import json
import re
import time

import msgspec

from sparkd.base.host import Host
from sparkd.base.lib.errors import EngineEndedError, ExitCode, UsageError
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import parse_time
from sparkd.base.vllm.warm_up_steps import MOST_AT_ONCE as MOST_TO_WARM
from sparkd.tools.cli import bench_table, console
from sparkd.tools.cli.progress import Ticker
from sparkd.tools.measure import measuring
from sparkd.tools.measure.bench import Benchmark, Wanted
from sparkd.tools.measure.measuring import warm_caches
from sparkd.tools.measure.past import describe_slower_benches, find_runs, usual_figures
from sparkd.tools.measure.soak_verdict import STEADY, judge
from sparkd.tools.node.served import Served, open_endpoint

SHORTEST_SOAK_SECONDS = 40
"""A shorter soak has too few samples for a verdict."""
LONGEST_SECONDS = 7 * 86400
"""Of a soak, and of `warm`."""
_NUMBERS = re.compile(r"[0-9]{1,7}(?:,[0-9]{1,7}){0,15}")


def add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--concurrency", metavar="LIST", help="numbers of requests at once (recipe's, else 1,2,4,8)")
    parser.add_argument(
        "--depth", metavar="LIST", help="lengths of long prompts in tokens (2048,8192,32768 where they fit); 0: none"
    )
    parser.add_argument("--prompt", metavar="TOKENS", default="128", help="length of the other prompts (128)")
    parser.add_argument("--answer", metavar="TOKENS", default="128", help="length of each answer (128)")
    parser.add_argument("--runs", metavar="N", default="3", help="how often each number of requests is measured (3)")
    parser.add_argument(
        "--staggered", action="store_true", help="let requests arrive at random times (a Poisson process), not at once"
    )
    parser.add_argument("--soak", metavar="TIME", help="send requests for so long, such as 8h, and judge the memory")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print tables to paste")
    parser.set_defaults(run=run_bench)


def run_bench(args: argparse.Namespace) -> int:
    options = read_numbers(args)
    soak_seconds = parse_time("--soak", args.soak, SHORTEST_SOAK_SECONDS, LONGEST_SECONDS) if args.soak else 0
    if soak_seconds and (args.markdown or args.depth or args.staggered):
        raise UsageError("--soak takes --concurrency, --prompt, --answer and --json alone")
    with open_endpoint(measuring.MOST_AT_ONCE) as served, measuring.only_one():
        wanted = measuring.choose_lengths(options, served)
        if soak_seconds:
            with Ticker("sends requests"):
                return run_soak(served, wanted, soak_seconds, as_json=args.json)
        with Ticker("measures the endpoint"):
            benchmark = measuring.run(served, wanted, warms=True)
    report_figures(args, benchmark, served)
    if benchmark.interrupted:
        return 130
    return ExitCode.ENGINE_ENDED if benchmark.fault else ExitCode.GOOD


def run_soak(served: Served, wanted: Wanted, seconds: int, *, as_json: bool) -> int:
    """Run a soak, and print its verdict. Raises HttpError, StreamError where not even the first request is answered."""
    measured, interrupted = measuring.run_soak(served, wanted, seconds)
    verdict = judge(measured.samples, measured.first_failure)
    if as_json:
        outcome = {"verdict": verdict.outcome, "lines": verdict.lines, "interrupted": interrupted}
        print(json.dumps({"schema": 1, **outcome, "samples": msgspec.to_builtins(measured.samples)}))
    else:
        print("\n".join([*map(sanitize, verdict.lines), f"verdict: {verdict.outcome}"]))
    if interrupted:
        return 130
    return ExitCode.GOOD if verdict.outcome == STEADY else ExitCode.ENGINE_ENDED


def report_figures(args: argparse.Namespace, benchmark: Benchmark, served: Served) -> None:
    """Print the figures beside the expected and the usual ones. Those of a benchmark without a fault are kept."""
    past_rows, row = measuring.read_rows(Host()), measuring.make_row(benchmark, served)
    is_whole = bool(benchmark.levels) and not benchmark.interrupted and not benchmark.fault
    usual = usual_figures(benchmark, find_runs(past_rows))
    slower = describe_slower_benches(find_runs((*past_rows, row))) if is_whole else ()
    expect = served.node.recipe.expect
    if args.json:
        figures = {"schema": 1, **msgspec.to_builtins(benchmark), "slower": slower}
        print(msgspec.json.format(msgspec.json.encode(figures), indent=1).decode())
    elif args.markdown:
        print("\n".join((bench_table.markdown(benchmark, expect, usual), *slower)))
    else:
        console.show((*bench_table.tables(benchmark, expect, usual), *slower))
    if is_whole:
        measuring.keep(row)


def read_numbers(args: argparse.Namespace) -> Wanted:
    """Read the options; lists are empty where the defaults are to be chosen. Raises UsageError."""

    def numbers(name: str, text: str, most: int, least: int = 1) -> tuple[int, ...]:
        values = tuple(int(value) for value in text.split(",")) if _NUMBERS.fullmatch(text) else ()
        if not values or not all(least <= value <= most for value in values):
            raise UsageError(f"--{name}: needed are numbers from {least} to {most}, such as 1,2,4")
        return values

    def number(name: str, most: int) -> int:
        values = numbers(name, getattr(args, name), most)
        if len(values) > 1:
            raise UsageError(f"--{name}: needed is one number from 1 to {most}")
        return values[0]

    return Wanted(
        concurrency=numbers("concurrency", args.concurrency, measuring.MOST_AT_ONCE) if args.concurrency else (),
        depths=numbers("depth", args.depth, measuring.MOST_TOKENS, 0) if args.depth else (),
        prompt_tokens=number("prompt", measuring.MOST_TOKENS),
        answer_tokens=number("answer", measuring.MOST_TOKENS),
        runs=number("runs", 100),
        staggered=args.staggered,
        seed=time.time_ns(),
    )


def add_warm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="time", metavar="TIME", default="15m", help="how long at most, such as 30m (15m)")
    parser.epilog = "exit codes: 0 a whole pass compiled nothing, 12 not yet, 10 nothing serves here, 13 no answer"
    parser.set_defaults(run=warm_endpoint)


def warm_endpoint(args: argparse.Namespace) -> int:
    seconds = parse_time("--for", args.time, 10, LONGEST_SECONDS)
    with open_endpoint(MOST_TO_WARM) as served, measuring.only_one():
        try:
            with Ticker("warms the endpoint"):
                progress = asyncio.run(warm_caches(served, seconds))
        except ValueError as error:
            raise EngineEndedError(f"the engine can't be warmed: {error}", "sparkd status") from None
        if progress.lost:
            raise EngineEndedError(f"the endpoint stopped answering: {progress.shown}", "sparkd status")
    print(sanitize(progress.shown))
    if progress.whole:
        print("warm: a whole pass of requests has compiled nothing; nothing is to be done")
        return ExitCode.GOOD
    print("not warm yet, and the last requests may have waited for a kernel\nnext: sudo sparkd warm")
    return ExitCode.NOT_READY
