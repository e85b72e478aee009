"""`sparkd bench`: how fast this node's endpoint answers, beside the recipe's figures and this node's usual ones.

With --soak it sends requests for hours, and judges the memory. For people the figures are tables of 80 columns, or
Markdown.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence

import msgspec

from sparkd.base.host import Host
from sparkd.base.lib.errors import ExitCode, UsageError
from sparkd.base.lib.text import Parts, Table, counted, sanitize
from sparkd.base.lib.times import format_utc, parse_time
from sparkd.tools.cli import console
from sparkd.tools.cli.progress import Ticker
from sparkd.tools.measure import measuring
from sparkd.tools.measure.bench import Benchmark, Wanted
from sparkd.tools.measure.figures import (
    DECODE,
    FIRST,
    Depth,
    Spread,
    expected_figure,
    find_level,
    format_latency,
    ratio,
)
from sparkd.tools.measure.past import Usual, describe_slower_benches, find_runs, usual_figures
from sparkd.tools.measure.soak_verdict import STEADY, judge
from sparkd.tools.node.served import Served, open_endpoint

SHORTEST_SOAK_SECONDS = 40
"""A shorter soak has too few samples for a verdict."""
_NUMBERS = re.compile(r"[0-9]{1,7}(?:,[0-9]{1,7}){0,15}")
LEVEL_HEADINGS = ("at once", "tokens/s", "5-95 %", "recipe", "usual", "first", "recipe", "between", "request")
DEPTH_HEADINGS = ("prompt", "prefill tokens/s", "first token", "again", "speed-up", "decode tokens/s")
NONE = "-"
ExpectedFigures = Mapping[str, object]
"""A recipe's `expect`."""


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
    soak_seconds = parse_time("--soak", args.soak, SHORTEST_SOAK_SECONDS, 7 * 86400) if args.soak else 0
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
        print("\n".join((markdown(benchmark, expect, usual), *slower)))
    else:
        console.show((*tables(benchmark, expect, usual), *slower))
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


def tables(benchmark: Benchmark, expect: ExpectedFigures, usual: Usual | None) -> Parts:
    """Title, tables and notes for a terminal."""
    title = f"{sanitize(benchmark.model, 30)} by {sanitize(benchmark.recipe, 40)}"
    parts: list[str | Table] = [title, _describe_lengths(benchmark)]
    for rows in _make_tables(benchmark, expect, usual):
        parts += ["", Table(rows, heading=True, flexible=0)]
    return [*parts, *notes(benchmark, usual)]


def markdown(benchmark: Benchmark, expect: ExpectedFigures, usual: Usual | None) -> str:
    """The same text as Markdown."""
    title = f"`{sanitize(benchmark.model)}`, recipe `{sanitize(benchmark.recipe)}`"
    lines = [f"{title}, sparkd {benchmark.version}, {benchmark.made[:10]}: {_describe_lengths(benchmark)}"]
    for headings, *rows in _make_tables(benchmark, expect, usual):
        lines += ["", *(f"| {' | '.join(cells)} |" for cells in (headings, ["---:"] * len(headings), *rows))]
    return "\n".join([*lines, *notes(benchmark, usual)])


def _make_tables(benchmark: Benchmark, expect: ExpectedFigures, usual: Usual | None) -> list[list[tuple[str, ...]]]:
    """Tables with at least one row below their headings."""
    return [rows for rows in (level_rows(benchmark, expect, usual), depth_rows(benchmark.depths)) if rows[1:]]


def _describe_lengths(benchmark: Benchmark) -> str:
    arrivals = ", staggered" if any(level.arrivals == "staggered" for level in benchmark.levels) else ""
    return f"{benchmark.prompt_tokens} tokens in, {benchmark.answer_tokens} out{arrivals}"


def level_rows(benchmark: Benchmark, expect: ExpectedFigures, usual: Usual | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [LEVEL_HEADINGS]
    for level in benchmark.levels:
        rate, first_token = level.output_tokens_per_second, level.first_token_seconds
        usual_level = find_level(usual.levels, level) if usual else None
        usual_rate = usual_level.output_tokens_per_second if usual_level else None
        rows.append(
            (
                str(level.concurrency),
                _format_rate(rate.median) if rate else NONE,
                f"{_format_rate(rate.low)}-{_format_rate(rate.high)}" if rate else NONE,
                _format_ratio(ratio(rate, expected_figure(expect, DECODE, level.concurrency))),
                _format_ratio(ratio(rate, usual_rate.median if usual_rate else None)),
                _format_seconds(first_token),
                _format_ratio(ratio(first_token, expected_figure(expect, FIRST, level.concurrency))),
                _format_seconds(level.inter_token_seconds),
                _format_seconds(level.request_seconds),
            )
        )
    return rows


def depth_rows(depths: Sequence[Depth]) -> list[tuple[str, ...]]:
    return [
        DEPTH_HEADINGS,
        *(
            (
                f"{depth.prompt_tokens:,}",
                f"{depth.prefill_tokens_per_second:,.0f}",
                format_latency(depth.first_token_seconds),
                format_latency(depth.repeated_seconds),
                f"{depth.first_token_seconds / depth.repeated_seconds:.1f}x" if depth.repeated_seconds else NONE,
                f"{depth.stream_tokens_per_second:.1f}",
            )
            for depth in depths
        ),
    ]


def notes(benchmark: Benchmark, usual: Usual | None) -> list[str]:
    """Lines below the tables, after an empty one."""
    lines = ["recipe, usual: the ratio to their figure; first: until the first token"] if benchmark.levels else []
    for level in benchmark.levels:
        if level.accepted:
            shares = " ".join(f"{share:.2f}" for share in level.accepted)
            lines.append(f"{counted(level.concurrency, 'request')}: drafted tokens accepted, by position: {shares}")
        if level.failed:
            failed = f"{level.failed} of {level.requests} failed"
            lines.append(f"{counted(level.concurrency, 'request')}: {failed}: {sanitize(level.fault)}")
    if idle := _find_idle_positions(benchmark):
        lines.append(f"position {', '.join(idle)} accepted nothing, at any level: lower num_speculative_tokens")
    if usual:
        runs = f"the median of {usual.runs} runs since" if usual.runs > 1 else "the run of"
        lines.append(f"usual: {runs} {format_utc(usual.since)}{'' if usual.same_plan else ', of another plan'}")
    # Where all requests of a level failed, the line above has that fault.
    if benchmark.fault and not any(level.failed == level.requests for level in benchmark.levels):
        lines.append(f"ended early: {sanitize(benchmark.fault)}")
    lines += _describe_cold(benchmark)
    return ["", *lines] if lines else []


def _describe_cold(benchmark: Benchmark) -> list[str]:
    """Lines that name what was slowed by the compilation of kernels."""
    cold = [counted(level.concurrency, "request") for level in benchmark.levels if level.compiled]
    cold += [f"the prompt of {depth.prompt_tokens:,}" for depth in benchmark.depths if depth.compiled]
    if not cold:
        return []
    return [f"cold, kernels were compiled meanwhile: {', '.join(cold)}", "next, once more: sudo sparkd bench"]


def _find_idle_positions(benchmark: Benchmark) -> list[str]:
    """A drafter's positions at which no level has accepted a token."""
    shares_by_position = zip(*(level.accepted for level in benchmark.levels if level.accepted), strict=False)
    return [str(position) for position, shares in enumerate(shares_by_position, 1) if not any(shares)]


def _format_rate(value: float) -> str:
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def _format_seconds(spread: Spread | None) -> str:
    return format_latency(spread.median) if spread else NONE


def _format_ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else NONE
