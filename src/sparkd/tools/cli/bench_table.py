"""The figures of `sparkd bench` for people: tables of 80 columns, and Markdown."""

from collections.abc import Mapping, Sequence

from sparkd.base.lib.text import Parts, Table, counted, sanitize
from sparkd.base.lib.times import format_utc
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import DECODE, FIRST, Depth, Spread, expected_figure, find_level, ratio
from sparkd.tools.measure.measuring import format_latency
from sparkd.tools.measure.past import Usual

LEVEL_HEADINGS = ("at once", "tokens/s", "5-95 %", "recipe", "usual", "first", "recipe", "between", "request")
DEPTH_HEADINGS = ("prompt", "prefill tokens/s", "first token", "again", "speed-up", "decode tokens/s")
NONE = "-"
ExpectedFigures = Mapping[str, object]
"""A recipe's `expect`."""


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
