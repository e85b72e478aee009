"""What the page shows of a report: first whether it serves, and else which node is the trouble and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparkd.agent.status.page import Element, element
from sparkd.base.status.figures import ActivityReport
from sparkd.base.status.model import Contact, MemoryReport, NodeReport, Phase
from sparkd.base.status.view import (
    CONTACTS,
    NodeView,
    View,
    activity_figures,
    bounded_share,
    find_trouble,
    gpu_text,
    memory_share,
    memory_text,
    overview,
    progress_text,
)

TONES = {"ok": "ok", "warn": "warn", "block": "bad", "unknown": "bad", "hint": "none"}
PHASE_TONES = {Phase.COOLING.value: "warn", CONTACTS[Contact.UNHEARD]: "wait"}
MOST_LINES = 50
"""Limit of warnings, and of restarts: another node may send many, and each as long as a text can be."""
SAMPLES = 60
"""Samples of the memory: ten minutes."""


def make(report: NodeReport, view: View) -> tuple[str, list[Element]]:
    """Title and content. `view.alive`: whether the agent's main loop turns."""
    whole = overview(report, view)
    known = {report.rank: report} | {peer.rank: peer.report for peer in report.peers if peer.report}
    contacts = {peer.rank: peer.contact for peer in report.peers}
    tone, headline = _headline(whole.nodes)
    trouble = [part for node in whole.nodes for part in _trouble(node, known.get(node.rank), contacts.get(node.rank))]
    head = _head(whole.nodes[0], known)
    state = element("section", f"state {tone}", element("h1", "", headline), *head, *trouble, role="status")
    cards = (element("section", f"node {_tone(node)}", *_card(node, known.get(node.rank))) for node in whole.nodes)
    figures = [element("dl", "figures", *_figures(whole.activity))] if whole.activity else []
    parts = [state, *figures, element("h2", "", "Nodes"), element("div", "nodes", *cards)]
    restarts = [("none", text) for text in whole.restarts]
    warnings = [(TONES.get(note.level, "none"), note.text) for note in whole.notes]
    for heading, lines in (("Warnings", warnings), ("Restarts in the last 24 hours", restarts)):
        if lines:
            more = [("none", f"and {len(lines) - MOST_LINES} more")] if len(lines) > MOST_LINES else []
            listed = (element("li", tone, text) for tone, text in lines[:MOST_LINES] + more)
            parts += [element("h2", "", heading), element("ul", "notes", *listed)]
    plan = f"plan {report.plan_digest[:12]}" if report.plan_digest else ""
    about = ", ".join(part for part in (f"{report.node}: sparkd {report.version}", plan, report.transport) if part)
    return f"{headline}: {report.node}", [*parts, element("p", "about", about)]


def _tone(node: NodeView) -> str:
    return PHASE_TONES.get(node.phase, TONES.get(node.level, "wait"))


def _headline(nodes: tuple[NodeView, ...]) -> tuple[str, str]:
    """Tone and headline of the whole cluster, which serves where its head does."""
    head, troubled = nodes[0], any(_tone(node) in ("bad", "warn") for node in nodes)
    if head.level == "unknown":
        return "bad", "Not known: no news of the head"
    if head.phase in (Phase.SERVING.value, Phase.DEGRADED.value):
        return ("warn", "Serving, degraded") if troubled else ("ok", "Serving")
    if troubled:
        return "bad", "Not serving"
    return "wait", "Loading" if head.loading else "Not serving yet"


def _head(node: NodeView, known: Mapping[int, NodeReport]) -> Iterator[Element]:
    """What it serves or waits for, and since when."""
    if node.level != "unknown" and node.rank in known:
        yield element("p", "", known[node.rank].message or node.phase)
        yield element("p", "quiet", f"{node.phase} for {node.age}")


def _trouble(node: NodeView, report: NodeReport | None, contact: Contact | None) -> Iterator[Element]:
    """What is wrong with a node and what to do; nothing where nothing is."""
    if _tone(node) not in ("bad", "warn"):
        return
    yield element("p", "", element("b", "", node.name), f": {node.phase}. {node.cause}")
    if advice := find_trouble(report, contact or Contact.ANSWERS)[1]:
        yield element("p", "do", f"To do: {advice}")


def _figures(activity: ActivityReport) -> Iterator[Element]:
    for name, text in activity_figures(activity).items():
        yield element("div", "", element("dt", "", name), element("dd", "", text))


def _card(node: NodeView, report: NodeReport | None) -> Iterator[Element]:
    yield element("h3", "", node.name)
    yield element("p", "quiet", f"rank {node.rank}" if node.rank else "rank 0, the head")
    yield element("p", "phase", f"{node.phase}, {node.age}" if node.age else node.phase)
    if node.loading:
        left = [element("p", "quiet", node.left)] if node.left else []
        yield _bar("load", progress_text(node.loading), "", bounded_share(node.loading.progress), *left)
    if node.memory:
        yield _bar("memory", "memory", memory_text(node.memory), memory_share(node.memory), *_sparkline(node.memory))
    if node.gpu:
        yield element("p", "more quiet", f"GPU {gpu_text(node.gpu)}")
    if report and report.last_cause:
        yield element("p", "more quiet", f"Last cause: {report.last_cause}")


def _bar(style: str, label: str, value: str, share: float | None, *more: Element) -> Element:
    """A bar, which without a share shows that work is being done."""
    done = {} if share is None else {"value": f"{share:.3f}"}
    texts = element("span", "", element("span", "", label), element("span", "", value))
    return element("div", f"bar {style}", texts, element("progress", "", aria_label=label, max="1", **done), *more)


def _sparkline(memory: MemoryReport) -> Iterator[Element]:
    heights = [100 - min(max(percent, 0), 100) for percent in memory.used_percent[-SAMPLES:]]
    if len(heights) > 1:
        first, last = SAMPLES - len(heights), SAMPLES - 1
        line = " ".join(f"{at},{height}" for at, height in enumerate(heights, first))
        area = element("polygon", "", points=f"{first},100 {line} {last},100")
        shapes = (area, element("polyline", "", points=line))
        box = {"viewBox": f"0 -2 {last} 102", "preserveAspectRatio": "none"}
        yield element("svg", "", *shapes, role="img", aria_label="memory in use, last ten minutes", **box)
        yield element("span", "axis", element("span", "", "10 min ago"), element("span", "", "now"))
