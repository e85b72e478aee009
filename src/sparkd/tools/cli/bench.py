"""`sparkd bench`, `smoke` and `warm`, which send requests to this node's endpoint.

`bench` measures how fast it answers, beside the recipe's figures and this node's usual ones. `smoke` tests whether
answers make sense, alone and at once. `warm` has kernels compiled before clients wait for them.
"""

import argparse
import asyncio
import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from sparkd.base.host import Host
from sparkd.base.lib.errors import EngineEndedError, ExitCode, UsageError
from sparkd.base.lib.text import parse_time, sanitize
from sparkd.base.state.history import Smoke
from sparkd.base.status.model import utc_now
from sparkd.base.vllm.smoke import Round
from sparkd.base.vllm.warm_up_steps import MOST_AT_ONCE as MOST_TO_WARM
from sparkd.tools.cli import bench_table, console
from sparkd.tools.measure import measuring
from sparkd.tools.measure.bench import Benchmark, Wanted
from sparkd.tools.measure.past import describe_slower_benches, find_runs, usual_figures
from sparkd.tools.measure.soak import STEADY, judge
from sparkd.tools.measure.warming import warm_caches
from sparkd.tools.node.served import CONNECTIONS, Served, open_endpoint, run_smoke

SHORTEST_SECONDS, LONGEST_SECONDS = 40, 7 * 86400
"""A shorter soak has too few samples for a verdict."""
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
    options = read_numbers(args)
    soak_seconds = parse_time("--soak", args.soak, SHORTEST_SECONDS, LONGEST_SECONDS) if args.soak else 0
    if soak_seconds and (args.markdown or args.depth or args.staggered):
        raise UsageError("--soak takes --concurrency, --prompt, --answer and --json alone")
    with open_endpoint(measuring.MOST_AT_ONCE) as served, measuring.only_one():
        wanted = measuring.choose_lengths(options, served)
        if soak_seconds:
            with console.Ticker("sends requests"):
                return soak(served, wanted, soak_seconds, as_json=args.json)
        with console.Ticker("measures the endpoint"):
            benchmark = measuring.run(served, wanted, warms=True)
    report(args, benchmark, served)
    if benchmark.interrupted:
        return 130
    return ExitCode.ENGINE_ENDED if benchmark.fault else ExitCode.GOOD


def soak(served: Served, wanted: Wanted, seconds: int, *, as_json: bool) -> int:
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


def report(args: argparse.Namespace, benchmark: Benchmark, served: Served) -> None:
    """Print the figures beside the expected and the usual ones. Those of a benchmark without a fault are kept."""
    rows, row = measuring.read_rows(Host()), measuring.make_row(benchmark, served)
    is_whole = bool(benchmark.levels) and not benchmark.interrupted and not benchmark.fault
    usual = usual_figures(benchmark, find_runs(rows))
    slower = describe_slower_benches(find_runs((*rows, row))) if is_whole else ()
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
        values = tuple(int(value) for value in text.split(",")) if _LIST.fullmatch(text) else ()
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


COLUMNS = 80
LEAST_SHARE = 0.9
"""Share of the recipe's KV cache that is needed: with less, something else has the memory."""


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
        rounds = asyncio.run(run_smoke(served) if args.json else run_smoke(served, show))
        cache_text, is_too_small = describe_cache(
            served.report.engine.kv_cache_tokens, served.node.plan.kv_cache_tokens
        )
        faults = tuple(sanitize(fault) for round_ in rounds for fault in round_.faults)
        recipe, launch = served.node.plan.recipe, served.report.launch_id
        measuring.keep(Smoke(uuid.uuid4().hex, utc_now(), launch, recipe, len(faults), faults[:20]))
    bad, seconds = len(faults), time.monotonic() - began
    if args.json:
        round_rows = msgspec.to_builtins(rounds)
        console.show_json(bad_outputs=bad, seconds=round(seconds, 1), kv_cache=cache_text, rounds=round_rows)
    else:
        print(f"KV cache            {cache_text}")
        skipped = sum(bool(round_.skipped) for round_ in rounds)
        print(f"bad outputs: {bad}   ({seconds:.0f} s{f'; skipped: {skipped}' if skipped else ''})")
        for line in list_next(faults, served.node.plan.model_pull, is_too_small=is_too_small):
            print(line)
    return ExitCode.NOT_READY if bad or is_too_small else ExitCode.GOOD


def list_next(faults: Sequence[str], model_pull: str, *, is_too_small: bool) -> Iterator[str]:
    """Yield lines on what to do about a smoke test's faults. `model_pull`: the command that downloads its model."""
    if any(fault.startswith("known texts") for fault in faults):
        yield f"next: {model_pull}"
        yield "      or another image; if it should know no texts,"
        yield "      model.random_weights: true in its recipe"
    if is_too_small:
        yield "next: who has the memory: sparkd preflight --dry-run"


def show(round_: Round) -> None:
    print("\n".join(lines(round_)), flush=True)


def lines(round_: Round) -> list[str]:
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
    is_too_small = tokens < LEAST_SHARE * expected
    text += f", {tokens / expected:.0%} of the recipe's {expected:,}"
    return text + "; too few" * is_too_small, is_too_small


def add_warm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--for", dest="time", metavar="TIME", default="15m", help="how long at most, such as 30m (15m)")
    parser.epilog = "exit codes: 0 a whole pass compiled nothing, 12 not yet, 10 nothing serves here, 13 no answer"
    parser.set_defaults(run=warm_endpoint)


def warm_endpoint(args: argparse.Namespace) -> int:
    seconds = parse_time("--for", args.time, 10, LONGEST_SECONDS)
    with open_endpoint(MOST_TO_WARM) as served, measuring.only_one():
        try:
            with console.Ticker("warms the endpoint"):
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
