"""The figures of `sparkd bench` for people: tables of 80 columns, and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkd.base.lib.text import Parts, Table, sanitize
from sparkd.base.state.known_good import format_utc
from sparkd.tools.measure.bench import Result
from sparkd.tools.measure.figures import DECODE, FIRST, Depth, Spread, expected, find_level, ratio, seconds
from sparkd.tools.measure.past import Usual

LEVELS = ("at once", "tokens/s", "5-95 %", "recipe", "usual", "first", "recipe", "between", "request")
DEPTHS = ("prompt", "prefill tokens/s", "first token", "again", "speed-up", "decode tokens/s")
NONE = "-"
Expect = Mapping[str, object]


def tables(found: Result, expect: Expect, usual: Usual | None) -> Parts:
    parts: list[str | Table] = [f"{sanitize(found.model, 30)} by {sanitize(found.recipe, 40)}", _lengths(found)]
    for rows in (level_rows(found, expect, usual), depth_rows(found.depths)):
        if len(rows) > 1:
            parts += ["", Table(rows, heading=True, flexible=0)]
    return [*parts, *notes(found, usual)]


def markdown(found: Result, expect: Expect, usual: Usual | None) -> str:
    names = f"`{sanitize(found.model)}`, recipe `{sanitize(found.recipe)}`, sparkd {found.version}, {found.made[:10]}"
    lines = [f"{names}: {_lengths(found)}"]
    for rows in (level_rows(found, expect, usual), depth_rows(found.depths)):
        if len(rows) > 1:
            lines += ["", _line(rows[0]), _line(["---:"] * len(rows[0])), *map(_line, rows[1:])]
    return "\n".join([*lines, *notes(found, usual)])


def _lengths(found: Result) -> str:
    late = ", staggered" if any(one.arrivals == "staggered" for one in found.levels) else ""
    return f"{found.prompt_tokens} tokens in, {found.answer_tokens} out{late}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def level_rows(found: Result, expect: Expect, usual: Usual | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [LEVELS]
    for one in found.levels:
        rate, first = one.output_tokens_per_second, one.first_token_seconds
        before = find_level(usual.levels, one) if usual else None
        old = before.output_tokens_per_second if before else None
        rows.append(
            (
                str(one.concurrency),
                _rate(rate.median) if rate else NONE,
                f"{_rate(rate.low)}-{_rate(rate.high)}" if rate else NONE,
                _ratio(ratio(rate, expected(expect, DECODE, one.concurrency))),
                _ratio(ratio(rate, old.median if old else None)),
                _seconds(first),
                _ratio(ratio(first, expected(expect, FIRST, one.concurrency))),
                _seconds(one.inter_token_seconds),
                _seconds(one.request_seconds),
            )
        )
    return rows


def depth_rows(depths: Sequence[Depth]) -> list[tuple[str, ...]]:
    return [
        DEPTHS,
        *(
            (
                f"{one.prompt_tokens:,}",
                f"{one.prefill_tokens_per_second:,.0f}",
                seconds(one.first_token_seconds),
                seconds(one.repeated_seconds),
                f"{one.first_token_seconds / one.repeated_seconds:.1f}x" if one.repeated_seconds else NONE,
                f"{one.stream_tokens_per_second:.1f}",
            )
            for one in depths
        ),
    ]


def notes(found: Result, usual: Usual | None) -> list[str]:
    lines = ["recipe, usual: the ratio to their figure; first: until the first token"] if found.levels else []
    for one in found.levels:
        if one.accepted:
            shares = " ".join(f"{share:.2f}" for share in one.accepted)
            lines.append(f"{one.concurrency} requests: drafted tokens accepted, by position: {shares}")
        if one.failed:
            lines.append(f"{one.concurrency} requests: {one.failed} of {one.requests} failed: {sanitize(one.fault)}")
    if idle := _idle_positions(found):
        lines.append(f"position {', '.join(idle)} accepted nothing, at any level: lower num_speculative_tokens")
    if usual:
        runs = f"the median of {usual.runs} runs since" if usual.runs > 1 else "the run of"
        lines.append(f"usual: {runs} {format_utc(usual.since)}{'' if usual.same_plan else ', of another plan'}")
    if found.fault and not any(one.failed == one.requests for one in found.levels):
        lines.append(f"ended early: {sanitize(found.fault)}")
    lines += _cold(found)
    return ["", *lines] if lines else []


def _cold(found: Result) -> list[str]:
    cold = [f"{one.concurrency} requests" for one in found.levels if one.compiled]
    cold += [f"the prompt of {one.prompt_tokens:,}" for one in found.depths if one.compiled]
    if not cold:
        return []
    return [f"cold, kernels were compiled meanwhile: {', '.join(cold)}", "next, once more: sudo sparkd bench"]


def _idle_positions(found: Result) -> list[str]:
    """Of a drafter: those where no level has accepted a token."""
    shares_by_position = zip(*(level.accepted for level in found.levels if level.accepted), strict=False)
    return [str(position) for position, shares in enumerate(shares_by_position, 1) if not any(shares)]


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 999.95 else f"{value:,.0f}"


def _seconds(spread: Spread | None) -> str:
    return seconds(spread.median) if spread else NONE


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else NONE
