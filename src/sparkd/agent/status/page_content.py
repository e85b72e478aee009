"""What the page shows: whether it serves and how to reach it, or which node is in trouble and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from json import dumps
from shlex import quote

from msgspec.json import decode

from sparkd.agent.status.kept import POINTS, Disk, Kept, Point, find_spans
from sparkd.agent.status.page import Element, element
from sparkd.base.lib.text import sanitize
from sparkd.base.state.history import Bench, Launch, Smoke
from sparkd.base.status.figure_texts import (
    activity_figures,
    bounded_share,
    gpu_text,
    memory_share,
    memory_text,
    progress_text,
)
from sparkd.base.status.model import DAY_SECONDS, IN_SERVICE, Contact, NodeReport, Phase, format_duration, seconds_since
from sparkd.base.status.view import CONTACTS, SERVES, NodeView, Note, View, overview
from sparkd.base.vllm.args import KEY_VARIABLE

TONES = {"ok": "ok", "warn": "warn", "block": "bad", "unknown": "bad", "hint": "none"}
NOTHING = "Nothing is to be done: it follows by itself."
MOST_LINES = 50
"""Limit of warnings, and of restarts: another node may send many, and each as long as a text can be."""
LINE_LIMIT, MOST_LEVELS = 400, 3
"""Characters of a line of the log, and levels of a bench."""
CURVES = (
    ("tokens/s out", "{:,.1f}", 0, 0.0),
    ("requests", "{:,.1f}", 1, 0.0),
    ("time to first token", "{:,.2f} s", 2, 0.0),
    ("memory in use", "{:.0%}", 3, 1.0),
)
"""Label, format, place in a `Point`, and the scale's top; 0: the largest value."""
_COMMAND = re.compile(r"(?:^|: )((?:sudo )?(?:sparkd|systemctl|journalctl) [\w ./:=@%+,'*-]{1,200})$", re.ASCII)
"""A hint's end that is one command of a few, without an operator of the shell."""


def make(report: NodeReport, view: View, kept: Kept) -> tuple[str, list[Element]]:
    """Title and content. `view.alive`: whether the agent's main loop turns."""
    whole = overview(report, view)
    tone, headline = _headline(whole.nodes)
    troubled = [node for node in whole.nodes if _tone(node) in ("bad", "warn")]
    # A head that is degraded because of another node has nothing of its own to do.
    causes = [node for node in troubled if node.advice] or troubled
    trouble = [part for node in causes for part in _trouble(node)]
    head = [*_head(whole.nodes[0], bool(trouble)), *trouble, *_reach(whole.nodes[0])]
    state = element("section", f"state {tone}", element("div", "", element("h1", "", headline), role="status"), *head)
    cards = (
        element("section", f"node {_tone(node)}", *_card(node, kept.curves.get(node.rank, ()))) for node in whole.nodes
    )
    figures = activity_figures(whole.activity) if whole.activity else {}
    shown = (element("div", "", element("dt", "", name), element("dd", "", text)) for name, text in figures.items())
    parts = [
        state,
        *([element("dl", "figures", *shown)] if figures else []),
        element("h2", "", "Nodes"),
        element("div", "nodes", *cards),
    ]
    said = tuple(f": {text}" for node in causes for text in (node.why, node.advice) if text)
    notes = [note for note in whole.notes if not f": {note.text}".endswith(said)]
    parts += _below(report, view, kept, notes, whole.restarts)
    plan = f"plan {report.plan_digest[:12]}" if report.plan_digest else ""
    about = ", ".join(part for part in (f"{report.node}: sparkd {report.version}", plan, report.transport) if part)
    more = element("p", "about", "All lines: ", _code("sudo sparkd logs"))
    return f"{headline}: {report.node}", [*parts, more, element("p", "about", about)]


def _below(report: NodeReport, view: View, kept: Kept, notes: Sequence[Note], restarts: Sequence[str]) -> list[Element]:
    parts = _list("Warnings", [(TONES.get(note.level, "none"), note.text) for note in notes])
    if day := list(_day(kept.disk, view, report)):
        parts += [element("h2", "", f"The last 24 hours of {report.node}"), element("div", "day", *day)]
    parts += _list("Restarts", [("none", text) for text in restarts])
    lines = [(format_duration(view.now.timestamp() - line.at_us / 1e6), line.text) for line in kept.disk.warnings]
    logged = [("none", f"{age} ago: {sanitize(text, LINE_LIMIT)}") for age, text in lines]
    parts += _list("Warnings in the log", logged)
    return parts


def _list(heading: str, lines: Sequence[tuple[str, str]]) -> list[Element]:
    if not lines:
        return []
    more = [("none", f"and {len(lines) - MOST_LINES} more")] if len(lines) > MOST_LINES else []
    listed = (element("li", tone, text) for tone, text in [*lines[:MOST_LINES], *more])
    return [element("h2", "", heading), element("ul", "notes", *listed)]


def _code(text: str) -> Element:
    """A line to copy: a click, or the focus, selects the whole."""
    return element("code", "copy", text, tabindex="0")


def _tone(node: NodeView) -> str:
    return "wait" if node.phase == CONTACTS[Contact.UNHEARD] else TONES.get(node.level, "wait")


def _headline(nodes: tuple[NodeView, ...]) -> tuple[str, str]:
    """Tone and headline of the whole cluster, which serves where its head does."""
    head, troubled = nodes[0], any(_tone(node) in ("bad", "warn") for node in nodes)
    if head.level == "unknown":
        return "bad", "Not known: no news of the head"
    if head.phase in SERVES:
        return ("warn", "Serving, degraded") if troubled else ("ok", "Serving")
    if troubled:
        return "bad", "Not serving"
    return "wait", "Loading" if head.loading else "Not serving yet"


def _head(node: NodeView, troubled: bool) -> Iterator[Element]:
    """What it serves or waits for, and since when. The cause of trouble is said once, behind it."""
    if (report := node.living) is None:
        return
    serves = node.phase in SERVES
    if model := report.engine.model if serves else "":
        yield element("p", "", element("b", "", model), f", {node.phase} for {node.age}")
    elif serves or not troubled:
        yield element("p", "", report.message or node.phase)
        yield element("p", "quiet", f"{node.phase} for {node.age}{'' if serves else f'. {NOTHING}'}")


def _reach(node: NodeView) -> Iterator[Element]:
    """The address of the API, and a request. What another node sent is quoted for the shell."""
    if node.phase not in SERVES or not node.living or not (engine := node.living.engine).url:
        return
    body = dumps({"model": engine.model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    key = f'-H "Authorization: Bearer ${KEY_VARIABLE}" ' if engine.keyed else ""
    url = quote(f"{engine.url}/chat/completions")
    yield element("p", "", _code(engine.url))
    yield element("p", "", _code(f"curl {url} {key}-H 'Content-Type: application/json' -d {quote(body)}"))
    if engine.keyed:
        yield element("p", "quiet", f"{KEY_VARIABLE}: the key, which is in the file that sparkd endpoint names")


def _trouble(node: NodeView) -> Iterator[Element]:
    """What is wrong with a node, and what to do there."""
    now, advice = node.living, node.advice
    cause = ((now.phase is Phase.BLOCKED and node.why) or now.message) if now else node.cause
    yield element("p", "", element("b", "", node.name), f": {node.phase}{f'. {cause}' if cause else ''}")
    command = _COMMAND.search(advice)
    text = advice[: command.start()] if command else advice
    yield element("p", "do", f"To do on {node.report.node if node.report else node.name}{f': {text}' if text else ':'}")
    if command or not advice:
        yield element("p", "", _code(command[1] if command else "sudo sparkd logs"))


def _card(node: NodeView, points: Sequence[Point]) -> Iterator[Element]:
    yield element("h3", "", node.name)
    yield element("p", "quiet", f"rank {node.rank}" if node.rank else "rank 0, the head")
    yield element("p", "phase", f"{node.phase}, {node.age}" if node.age else node.phase)
    if node.loading:
        left = [element("p", "quiet", node.left)] if node.left else []
        yield _bar("load", progress_text(node.loading), "", bounded_share(node.loading.progress), *left)
    now = node.living
    if now and now.memory:
        yield _bar("memory", "memory", memory_text(now.memory), memory_share(now.memory))
    if now and now.gpu:
        yield element("p", "more quiet", f"GPU {gpu_text(now.gpu)}")
    yield from _curves(points)
    if node.report and node.report.last_cause:
        yield element("p", "more quiet", f"Last cause: {node.report.last_cause}")


def _bar(style: str, label: str, value: str, share: float | None, *more: Element) -> Element:
    """A bar, which without a share shows that work is being done."""
    done = {} if share is None else {"value": f"{share:.3f}"}
    texts = element("span", "", element("span", "", label), element("span", "", value))
    return element("div", f"bar {style}", texts, element("progress", "", aria_label=label, max="1", **done), *more)


def _curves(points: Sequence[Point]) -> Iterator[Element]:
    """An hour of each figure that the node had."""
    for label, form, at, top in CURVES:
        values = [point[at] for point in points]
        known = [value for value in values if value is not None]
        if len(values) > 1 and any(known):
            text = f"{form.format(known[-1])}, at most {form.format(max(known))}"
            drawn = _svg(f"{label}, last hour: {text}", f"0 -2 {POINTS - 1} 102", _path(values, top or max(known)))
            texts = element("span", "", element("span", "", label), element("span", "", text))
            yield element("div", "curve", texts, drawn)
    if len(points) > 1:
        yield element("p", "axis", element("span", "", f"{len(points)} min ago"), element("span", "", "now"))


def _path(values: Sequence[float | None], scale: float) -> Element:
    """The newest value on the right, and a gap where there was none."""
    line, drawn = "", False
    for at, value in enumerate([*values, None], POINTS - len(values)):
        if value is not None:
            line += f"{'' if drawn else f'M{at},100'}L{at},{100 - 100 * value / scale:.0f}"
        elif drawn:
            line += f"L{at - 1},100Z"
        drawn = value is not None
    return element("path", "", d=line)


def _svg(label: str, box: str, *shapes: Element) -> Element:
    return element("svg", "", *shapes, role="img", aria_label=label, viewBox=box, preserveAspectRatio="none")


def _day(disk: Disk, view: View, report: NodeReport) -> Iterator[Element]:
    rects, sums = [], {"serving": 0.0, "loading": 0.0}
    for state, begin, end in find_spans(disk.rows, view.now):
        sums[state] += begin - end
        # A load is half as high, and so known without its colour; and long enough to be seen.
        tone, top = ("wait", 5) if state == "loading" else ("ok", 0)
        shape = {"x": DAY_SECONDS - begin, "width": max(begin - end, 90), "y": top, "height": 10 - top}
        rects.append(element("rect", tone, **{name: f"{value:.0f}" for name, value in shape.items()}))
    first = next((row.at for row in disk.rows if isinstance(row, Launch)), "")  # what was before is not known
    known_seconds = min(seconds_since(first, view.now) or 0.0, DAY_SECONDS)
    sums["down"] = max(0.0, known_seconds - sum(sums.values()))
    text = ", ".join(f"{state} {format_duration(seconds)}" for state, seconds in sums.items())
    last = {type(row): row for row in disk.rows}
    if Launch in last:
        yield element("p", "", text)
        yield _svg(f"last 24 hours: {text}", f"0 0 {DAY_SECONDS} 10", *rects)
        yield element("p", "axis", element("span", "", "24 h ago"), element("span", "", "now"))
    for kind, command in ((Smoke, "smoke"), (Bench, "bench")):
        match last.get(kind):
            case Smoke() as smoke:
                faults = f"{smoke.bad} bad answers: {', '.join(smoke.faults)}" if smoke.bad else "all answers good"
                yield element("p", "", f"Last smoke test, {view.age(smoke.at)} ago: {faults}")
            case Bench() as bench:
                yield element("p", "", f"Last bench, {view.age(bench.at)} ago: {_describe_bench(bench)}")
            case _ if report.rank == 0 and report.phase in IN_SERVICE:  # they request this node's endpoint
                yield element("p", "", f"No {command} yet: ", _code(f"sudo sparkd {command}"))


def _describe_bench(bench: Bench) -> str:
    """Its rates by the number of requests at once. Another version may have written it."""
    names, texts = ("output_tokens_per_second", "first_token_seconds"), []
    with suppress(KeyError, TypeError, ValueError):
        for level in decode(bench.figures)["levels"][:MOST_LEVELS]:
            rate, first = (level[name]["median"] for name in names)
            texts.append(f"{rate:,.1f} tokens/s, first token {first:.2f} s ({level['concurrency']:d} at once)")
    return "; ".join(texts) or "see sparkd history"
