"""The page's part on the last 24 hours of this node: its times by state, the last smoke test, the last bench. Pure."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from msgspec.json import decode

from sparkd.agent.status.page import Element, build_code, build_svg, element
from sparkd.agent.status.page_history import Disk
from sparkd.base.lib.times import DAY_SECONDS, format_duration, seconds_since
from sparkd.base.state.history import Bench, Launch, Row, Smoke
from sparkd.base.status.model import IN_SERVICE, NodeReport
from sparkd.base.status.view import View


def describe_day(disk: Disk, view: View, report: NodeReport) -> Iterator[Element]:
    """The last 24 hours as times and a bar, then the last smoke test and the last bench."""
    last_rows = {type(row): row for row in disk.rows}
    if Launch in last_rows:
        yield from _build_timeline(disk, view)
    has_endpoint = report.rank == 0 and report.phase in IN_SERVICE  # which both commands need
    if isinstance(smoke := last_rows.get(Smoke), Smoke):
        faults = f"bad answers: {smoke.bad} ({', '.join(smoke.faults)})" if smoke.bad else "all answers good"
        yield element("p", "", f"Last smoke test, {view.age(smoke.at)} ago: {faults}")
    elif has_endpoint:
        yield element("p", "", "No smoke yet: ", build_code("sudo sparkd smoke"))
    if isinstance(bench := last_rows.get(Bench), Bench):
        yield element("p", "", f"Last bench, {view.age(bench.at)} ago: {_describe_bench(bench)}")
    elif has_endpoint:
        yield element("p", "", "No bench yet: ", build_code("sudo sparkd bench"))


def _build_timeline(disk: Disk, view: View) -> Iterator[Element]:
    """The last 24 hours by state: the sum of each, and a bar."""
    rectangles, seconds_by_state = [], {"serving": 0.0, "loading": 0.0}
    for span in find_spans(disk.rows, view.now):
        seconds = span.begin_seconds - span.end_seconds
        seconds_by_state[span.state] += seconds
        # The bar of a load is half as high, to be recognised without colour. 90 s are wide enough to be seen.
        tone, top = ("wait", 5) if span.state == "loading" else ("ok", 0)
        attributes = {"x": DAY_SECONDS - span.begin_seconds, "width": max(seconds, 90), "y": top, "height": 10 - top}
        rectangles.append(element("rect", tone, **{name: f"{value:.0f}" for name, value in attributes.items()}))
    # What was before the first launch is not known.
    first_launch_at = next((row.at for row in disk.rows if isinstance(row, Launch)), "")
    known_seconds = min(seconds_since(first_launch_at, view.now) or 0.0, DAY_SECONDS)
    seconds_by_state["down"] = max(0.0, known_seconds - sum(seconds_by_state.values()))
    text = ", ".join(f"{state} {format_duration(seconds)}" for state, seconds in seconds_by_state.items())
    yield element("p", "", text)
    yield build_svg(f"last 24 hours: {text}", f"0 0 {DAY_SECONDS} 10", *rectangles)
    yield element("p", "axis", element("span", "", "24 h ago"), element("span", "", "now"))


def _describe_bench(bench: Bench) -> str:
    """Its rates by the number of requests at once, if it is readable: another version may have written it."""
    names, texts = ("output_tokens_per_second", "first_token_seconds"), []
    with suppress(KeyError, TypeError, ValueError):
        for level in decode(bench.figures)["levels"][:3]:  # there may be any number
            rate, first_token = (level[name]["median"] for name in names)
            texts.append(f"{rate:,.1f} tokens/s, first token {first_token:.2f} s ({level['concurrency']:d} at once)")
    return "; ".join(texts) or "see: sudo sparkd history"


class Span(NamedTuple):
    """A part of the last day, in seconds before now: the begin is the larger number."""

    state: str
    """`loading` or `serving`."""
    begin_seconds: float
    end_seconds: float


def find_spans(rows: Sequence[Row], now: datetime) -> Iterator[Span]:
    """Spans in which this node loaded or served. A launch without an end lasts to the next one, or to now."""
    launches = [row for row in rows if isinstance(row, Launch)]
    for launch, next_at in zip(launches, [*(later.at for later in launches[1:]), now.isoformat()], strict=False):
        began_seconds = seconds_since(launch.at, now)
        ended_seconds = seconds_since(launch.end.at if launch.end else next_at, now)
        if began_seconds is None or ended_seconds is None:
            continue
        loaded_seconds = ended_seconds if launch.load_seconds is None else began_seconds - launch.load_seconds
        for state, begin_seconds, end_seconds in (
            ("loading", began_seconds, loaded_seconds),
            ("serving", loaded_seconds, ended_seconds),
        ):
            span = Span(state, min(begin_seconds, DAY_SECONDS), max(end_seconds, 0.0))
            if span.begin_seconds > span.end_seconds:
                yield span
