"""What the page shows: whether it serves and how to reach the API, or which node is in trouble and what to do. Pure."""

import re
from collections.abc import Iterator, Sequence
from json import dumps
from operator import attrgetter
from shlex import quote

from sparkd.agent.status.page import Element, build_code, build_svg, element
from sparkd.agent.status.page_day import describe_day
from sparkd.agent.status.page_history import POINTS, PageHistory, Point
from sparkd.base.lib.text import sanitize
from sparkd.base.lib.times import format_duration
from sparkd.base.status.figure_texts import (
    activity_figures,
    bounded_share,
    gpu_text,
    memory_share,
    memory_text,
    progress_text,
)
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.view import SERVES, NodeView, Note, View, overview
from sparkd.base.vllm.args import KEY_VARIABLE

TONES = {"ok": "ok", "warn": "warn", "block": "bad", "unknown": "bad", "hint": "none"}
NOTHING = "Nothing is to be done: it follows by itself."
MOST_LINES = 50
"""Limit of warnings, and of restarts: another node may send many, each as long as a text can be."""
LINE_LIMIT = 400
"""Characters of a line of the log."""
CURVES = (
    ("tokens/s out", "{:,.1f}", attrgetter("tokens_per_second"), 0.0),
    ("requests", "{:,.1f}", attrgetter("requests"), 0.0),
    ("time to first token", "{:,.2f} s", attrgetter("first_token_seconds"), 0.0),
    ("memory in use", "{:.0%}", attrgetter("used_share"), 1.0),
)
"""Label, format, figure of a `Point`, and the scale's top; 0: the largest value."""
_COMMAND = re.compile(r"(?:^|: )((?:sudo )?(?:sparkd|systemctl|journalctl) [\w ./:=@%+,'*-]{1,200})$", re.ASCII)
"""The end of a hint, where that is one of a few commands, without operators of the shell."""


def build_page(report: NodeReport, view: View, history: PageHistory) -> tuple[str, list[Element]]:
    """Title and content. `view.alive`: whether the agent's main loop turns."""
    cluster = overview(report, view)
    head = cluster.nodes[0]
    tone, headline = _choose_headline(cluster.nodes)
    troubled = [node for node in cluster.nodes if _choose_tone(node) in ("bad", "warn")]
    # A head that is degraded because of another node has nothing of its own to do.
    causes = [node for node in troubled if node.advice] or troubled
    trouble = [part for node in causes for part in _describe_trouble(node)]
    status = element("div", "", element("h1", "", headline), role="status")
    details = [*_describe_head(head, bool(trouble)), *trouble, *_describe_access(head)]
    cards = (
        element("section", f"node {_choose_tone(node)}", *_build_card(node, history.curves.get(node.rank, ())))
        for node in cluster.nodes
    )
    figures = activity_figures(cluster.activity) if cluster.activity else {}
    pairs = (element("div", "", element("dt", "", name), element("dd", "", text)) for name, text in figures.items())
    parts = [
        element("section", f"state {tone}", status, *details),
        *([element("dl", "figures", *pairs)] if figures else []),
        element("h2", "", "Nodes"),
        element("div", "nodes", *cards),
    ]
    # Notes that repeat what the trouble says already are left out.
    shown_texts = tuple(f": {text}" for node in causes for text in (node.why, node.advice) if text)
    notes = [note for note in cluster.notes if not f": {note.text}".endswith(shown_texts)]
    parts += _build_lower_part(report, view, history, notes, cluster.restarts)
    return f"{headline}: {report.node}", [*parts, *_build_footer(report)]


def _build_footer(report: NodeReport) -> list[Element]:
    plan = f"plan {report.plan_digest[:12]}" if report.plan_digest else ""
    about = ", ".join(part for part in (f"{report.node}: sparkd {report.version}", plan, report.transport) if part)
    lines = element("p", "about", "All lines: ", build_code("sudo sparkd logs"))
    return [lines, element("p", "about", about)]


def _build_lower_part(
    report: NodeReport, view: View, history: PageHistory, notes: Sequence[Note], restarts: Sequence[str]
) -> list[Element]:
    parts = _build_list("Warnings", [(TONES.get(note.level, "none"), note.text) for note in notes])
    if day_parts := list(describe_day(history.disk, view, report)):
        parts += [element("h2", "", f"The last 24 hours of {report.node}"), element("div", "day", *day_parts)]
    parts += _build_list("Restarts", [("none", text) for text in restarts])
    lines = [(format_duration(view.now.timestamp() - line.at_us / 1e6), line.text) for line in history.disk.warnings]
    log_lines = [("none", f"{age} ago: {sanitize(text, LINE_LIMIT)}") for age, text in lines]
    parts += _build_list("Warnings in the log", log_lines)
    return parts


def _build_list(heading: str, lines: Sequence[tuple[str, str]]) -> list[Element]:
    if not lines:
        return []
    rest = [("none", f"and {len(lines) - MOST_LINES} more")] if len(lines) > MOST_LINES else []
    items = (element("li", tone, text) for tone, text in [*lines[:MOST_LINES], *rest])
    return [element("h2", "", heading), element("ul", "notes", *items)]


def _choose_tone(node: NodeView) -> str:
    is_new = node.is_awaited and node.report is None
    return "wait" if is_new else TONES.get(node.level, "wait")


def _choose_headline(nodes: tuple[NodeView, ...]) -> tuple[str, str]:
    """Tone and headline of the whole cluster, which serves where its head does."""
    head, troubled = nodes[0], any(_choose_tone(node) in ("bad", "warn") for node in nodes)
    if head.level == "unknown":
        return "bad", "Not known: no news of the head"
    if head.phase in SERVES:
        return ("warn", "Serving, degraded") if troubled else ("ok", "Serving")
    if troubled:
        return "bad", "Not serving"
    return "wait", "Loading" if head.loading else "Not serving yet"


def _describe_head(node: NodeView, troubled: bool) -> Iterator[Element]:
    """What the head serves or waits for, and since when. Where a node is in trouble, the cause follows elsewhere."""
    if (report := node.living) is None:
        return
    serves = node.phase in SERVES
    if model := report.engine.model if serves else "":
        yield element("p", "", element("b", "", model), f", {node.phase} for {node.age}")
    elif serves or not troubled:
        yield element("p", "", report.message or node.phase)
        yield element("p", "quiet", f"{node.phase} for {node.age}{'' if serves else f'. {NOTHING}'}")


def _describe_access(node: NodeView) -> Iterator[Element]:
    """The address of the API, and a command for a request, in which what another node sent is quoted for the shell."""
    if node.phase not in SERVES or not node.living or not (engine := node.living.engine).url:
        return
    body = dumps({"model": engine.model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    key = f'-H "Authorization: Bearer ${KEY_VARIABLE}" ' if engine.keyed else ""
    url = quote(f"{engine.url}/chat/completions")
    yield element("p", "", build_code(engine.url))
    yield element("p", "", build_code(f"curl {url} {key}-H 'Content-Type: application/json' -d {quote(body)}"))
    if engine.keyed:
        yield element("p", "quiet", f"{KEY_VARIABLE}: the key, which is in the file that sparkd endpoint names")


def _describe_trouble(node: NodeView) -> Iterator[Element]:
    """What is wrong with a node, and what to do there."""
    living, advice, cause = node.living, node.advice, node.cause
    if living:
        cause = node.why if living.phase is Phase.BLOCKED and node.why else living.message
    yield element("p", "", element("b", "", node.name), f": {node.phase}{f'. {cause}' if cause else ''}")
    command = _COMMAND.search(advice)
    text = advice[: command.start()] if command else advice
    name = node.report.node if node.report else node.name
    yield element("p", "do", f"To do on {name}: {text}" if text else f"To do on {name}:")
    if command or not advice:
        yield element("p", "", build_code(command[1] if command else "sudo sparkd logs"))


def _build_card(node: NodeView, points: Sequence[Point]) -> Iterator[Element]:
    """State, load, memory, GPU and curves of one node."""
    yield element("h3", "", node.name)
    yield element("p", "quiet", f"rank {node.rank}" if node.rank else "rank 0, the head")
    yield element("p", "phase", f"{node.phase}, {node.age}" if node.age else node.phase)
    if node.loading:
        time_left = [element("p", "quiet", node.left)] if node.left else []
        share = bounded_share(node.loading.progress)
        yield _build_bar("load", progress_text(node.loading), "", share, *time_left)
    living = node.living
    if living and living.memory:
        yield _build_bar("memory", "memory", memory_text(living.memory), memory_share(living.memory))
    if living and living.gpu:
        yield element("p", "more quiet", f"GPU {gpu_text(living.gpu)}")
    yield from _build_curves(points)
    if node.report and node.report.last_cause:
        yield element("p", "more quiet", f"Last cause: {node.report.last_cause}")


def _build_bar(style: str, label: str, value: str, share: float | None, *below: Element) -> Element:
    """A bar; without a share it only shows that work is being done."""
    value_attribute = {} if share is None else {"value": f"{share:.3f}"}
    texts = element("span", "", element("span", "", label), element("span", "", value))
    progress = element("progress", "", aria_label=label, max="1", **value_attribute)
    return element("div", f"bar {style}", texts, progress, *below)


def _build_curves(points: Sequence[Point]) -> Iterator[Element]:
    """A curve of the last hour for each figure that the node had."""
    for label, format_text, read_figure, top in CURVES:
        values = [read_figure(point) for point in points]
        known_values = [value for value in values if value is not None]
        if len(values) > 1 and any(known_values):
            text = f"{format_text.format(known_values[-1])}, at most {format_text.format(max(known_values))}"
            path = _draw_path(values, top or max(known_values))
            drawing = build_svg(f"{label}, last hour: {text}", f"0 -2 {POINTS - 1} 102", path)
            texts = element("span", "", element("span", "", label), element("span", "", text))
            yield element("div", "curve", texts, drawing)
    if len(points) > 1:
        yield element("p", "axis", element("span", "", f"{len(points)} min ago"), element("span", "", "now"))


def _draw_path(values: Sequence[float | None], scale: float) -> Element:
    """The curve with the area below it: the newest value on the right, a gap where there was none."""
    commands, is_drawing = "", False
    for x, value in enumerate([*values, None], POINTS - len(values)):
        if value is not None:
            commands += f"{'' if is_drawing else f'M{x},100'}L{x},{100 - 100 * value / scale:.0f}"
        elif is_drawing:
            commands += f"L{x - 1},100Z"
        is_drawing = value is not None
    return element("path", "", d=commands)
