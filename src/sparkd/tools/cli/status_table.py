"""A report as lines of text, on a terminal and without one. Pure."""

from __future__ import annotations

from sparkd.base.lib.text import Parts, Table, cell_width, pad, sanitize
from sparkd.base.status.model import NodeReport
from sparkd.base.status.view import (
    TEXT_LIMIT,
    NodeView,
    Overview,
    View,
    activity_figures,
    bar,
    bounded_share,
    gpu_text,
    memory_share,
    memory_text,
    overview,
    progress_text,
    sparkline,
)

LABEL_WIDTH = 10
NAME_WIDTH = 30
CAUSE_LIMIT = 300
"""On a terminal, which wraps it."""


def render(report: NodeReport, view: View, *, whole: bool = False) -> Parts:
    """Two lines for each node, in 80 columns unless `whole`, which cuts no cause; then what needs attention."""
    seen = overview(report, view)
    width = min(NAME_WIDTH, max(cell_width(one.name) for one in seen.nodes))
    limit = 2 * TEXT_LIMIT if whole else CAUSE_LIMIT
    rows = [(row, one.level) for one in seen.nodes for row in _node_rows(one, width, limit) if row[1]]
    notes = _notes(seen)
    table = Table([row for row, _ in rows], [level for _, level in rows])
    return [table, *([""] if notes.rows else []), notes]


def _node_rows(node: NodeView, width: int, limit: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Who it is and what it does; its figures."""
    shown = node.name if cell_width(node.name) <= width else f"{node.name[: width // 2]}…"
    since = f"{node.phase} for {node.age}" if node.age and node.age not in node.phase else node.phase
    doing = sanitize("; last: ".join(part for part in (node.serves, node.cause) if part), limit)
    figures = [node.left]
    if node.loading:
        share = bounded_share(node.loading.progress)
        doing = f"{f'{bar(share)} ' if share is not None else ''}{progress_text(node.loading)}"
    if node.memory:
        used = f"{bar(memory_share(node.memory))} {memory_text(node.memory)} {sparkline(node.memory.used_percent)}"
        figures = [used, *figures]
    if node.gpu:
        figures.append(gpu_text(node.gpu))
    first = f"{pad(shown, width)}  {since}  {doing}".rstrip()
    rank = str(node.rank) if node.rank >= 0 else "?"
    return (rank, first), ("", "  ".join(part for part in figures if part).rstrip())


def _notes(seen: Overview) -> Table:
    figures = [f"{text} {name}" for name, text in activity_figures(seen.activity).items()] if seen.activity else []
    lines = (("activity", figures[:2]), ("", figures[2:4]), ("caches", figures[4:]))
    activity = [(label, ", ".join(texts)) for label, texts in lines if texts]
    notes = [(one.level, one.text) for one in seen.notes]
    rows = [*activity, *notes, *(("restart", text) for text in seen.restarts)]
    return Table([(level.ljust(LABEL_WIDTH), text) for level, text in rows], [level for level, _ in rows])
