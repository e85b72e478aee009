"""A report as the lines that `sparkd status` prints."""

from collections.abc import Iterator

from sparkd.base.lib.text import Parts, Table, cell_width, pad, sanitize
from sparkd.base.status.figure_texts import (
    activity_figures,
    bar,
    bounded_share,
    gpu_text,
    memory_share,
    memory_text,
    progress_text,
    sparkline,
)
from sparkd.base.status.model import NodeReport, Phase
from sparkd.base.status.view import TEXT_LIMIT, NodeView, Overview, View, headline, overview

CAUSE_LIMIT = 300
"""Characters of a cause on a terminal, which wraps the line."""


def render(report: NodeReport, view: View, served: str = "", *, whole: bool = False) -> Parts:
    """The headline, what is served and what to do; two lines for each node; then what needs attention.

    Lines fit into 80 columns, unless `whole`, with which no cause is cut.
    """
    cluster = overview(report, view)
    width = min(30, max(cell_width(node.name) for node in cluster.nodes))
    limit = 2 * TEXT_LIMIT if whole else CAUSE_LIMIT
    rows = [(row, node.level) for node in cluster.nodes for row in _make_node_rows(node, width, limit) if row[1]]
    notes = _make_notes(cluster)
    table = Table([row for row, _ in rows], [level for _, level in rows])
    top = headline(report, view)
    is_whole = len(top.next) <= limit + 40  # a command with two digests
    step = top.next if is_whole else f"{sanitize(top.next, limit - 40)} (whole: sparkd status | cat)"
    lines = (sanitize(top.text, limit), served, f"next: {step}")
    title = Table([(line,) for line in lines if line], [top.level])
    return [title, "", table, *([""] if notes.rows else []), notes]


def _make_node_rows(node: NodeView, width: int, limit: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two rows: the node with what it does, and its figures."""
    name = node.name if cell_width(node.name) <= width else f"{node.name[: width // 2]}…"
    phase = f"{node.phase} for {node.age}" if node.age and node.age not in node.phase else node.phase
    serving = sanitize(node.living.message, TEXT_LIMIT) if node.phase == Phase.SERVING.value and node.living else ""
    activity = sanitize("; last: ".join(part for part in (serving, node.cause) if part), limit)
    if node.loading:
        share = bounded_share(node.loading.progress)
        activity = f"{f'{bar(share)} ' if share is not None else ''}{progress_text(node.loading)}"
    description = f"{pad(name, width)}  {phase}  {activity}".rstrip()
    rank = str(node.rank) if node.rank >= 0 else "?"
    return (rank, description), ("", "  ".join(filter(None, _list_figures(node))).rstrip())


def _list_figures(node: NodeView) -> Iterator[str]:
    if node.living and (memory := node.living.memory):
        yield f"{bar(memory_share(memory))} {memory_text(memory)} {sparkline(memory.used_percent)}"
    yield node.left
    if node.living and node.living.gpu:
        yield gpu_text(node.living.gpu)


def _make_notes(cluster: Overview) -> Table:
    known = activity_figures(cluster.activity) if cluster.activity else {}
    figures = [f"{text} {name}" for name, text in known.items()]
    lines = (("activity", figures[:2]), ("", figures[2:4]), ("caches", figures[4:]))
    rows = [(label, ", ".join(texts)) for label, texts in lines if texts]
    rows += [*((note.level, note.text) for note in cluster.notes), *(("restart", text) for text in cluster.restarts)]
    return Table([(level.ljust(10), text) for level, text in rows], [level for level, _ in rows])
