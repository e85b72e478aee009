"""Figures as people and programs read them. Pure."""

import json
from collections.abc import Sequence

from .figures import Figure, Spread
from .machine import Machine

SCHEMA = 1
HEAD = ("", "limit", "goal", "measured", "min", "max", "runs", "beside", "ratio", "")


def as_text(figures: Sequence[Figure], machine: Machine) -> str:
    """A table of the figures, and what they were measured on."""
    rows = [HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(_padded(row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, "", *_notes(figures, machine)]) + "\n"


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Words to the left, numbers to the right."""
    aside = {0, HEAD.index("beside"), len(HEAD) - 1}
    return [
        text.ljust(width) if column in aside else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def _row(figure: Figure) -> tuple[str, ...]:
    limit, beside, ratio = figure.limit, figure.beside, figure.ratio
    return (
        figure.what,
        f"{'>=' if limit.at_least else '<='} {number(limit.value)} {figure.unit}" if limit else "",
        f"{number(limit.goal)}" if limit and limit.goal is not None else "",
        f"{number(figure.measured)} {figure.unit}",
        number(figure.spread.low),
        number(figure.spread.high),
        str(len(figure.spread.runs)),
        f"{beside.what}: {number(beside.spread.median)} {figure.unit}" if beside else "",
        number(ratio) if ratio is not None else "",
        "" if limit is None else "pass" if figure.passed else "FAIL",
    )


def _notes(figures: Sequence[Figure], machine: Machine) -> list[str]:
    loads = [figure.load for figure in figures]
    missed = sum(not figure.passed for figure in figures)
    load_text = f"load of that machine while measuring: {number(min(loads))} to {number(max(loads))}" if loads else ""
    return [
        "measured: the median of the runs, or the worst of them where the limit says so; ratio: to what stands beside",
        f"sparkd {machine.version}, {machine.cores} cores of {machine.processor}, Linux {machine.kernel}",
        load_text,
        f"{missed} of {sum(figure.limit is not None for figure in figures)} limits missed",
    ]


def number(value: float) -> str:
    """Three digits that mean something; counts as they are."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.6f}".rstrip("0")


def as_json(figures: Sequence[Figure], machine: Machine, at: str) -> str:
    about = {"version": machine.version, "cores": machine.cores, "processor": machine.processor}
    return json.dumps(
        {
            "schema": SCHEMA,
            "at": at,
            "machine": {**about, "kernel": machine.kernel},
            "passed": all(figure.passed for figure in figures),
            "figures": [_fields(figure) for figure in figures],
        },
        indent=1,
    )


def _fields(figure: Figure) -> dict[str, object]:
    limit, beside = figure.limit, figure.beside
    return {
        "id": figure.id,
        "what": figure.what,
        "unit": figure.unit,
        **_spread(figure.spread),
        "limit": None
        if limit is None
        else {"value": limit.value, "goal": limit.goal, "at_least": limit.at_least, "by": limit.by.value},
        "measured": figure.measured,
        "passed": figure.passed,
        "beside": None if beside is None else {"what": beside.what, **_spread(beside.spread)},
        "ratio": figure.ratio,
        "load": figure.load,
    }


def _spread(spread: Spread) -> dict[str, object]:
    return {"min": spread.low, "median": spread.median, "max": spread.high, "runs": list(spread.runs)}
