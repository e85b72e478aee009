"""What a forum needs to know of a node, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkd.config import Settings
from sparkd.host import Host, versions
from sparkd.preflight.render import Shown
from sparkd.status import model
from sparkd.status.model import read_report
from sparkd.tools.dry_run import look_at


def summarize(settings: Settings, host: Host) -> str:
    """Markdown, for people who know neither node."""
    shown, report = look_at(settings, host), model.parse(read_report(host.files))
    found = (f"{name} {text}" for name, text in versions.read_versions(host).items())
    lines, names = [f"**{', '.join(found)}**", ""], {host.name(): "this-node"}
    if report is None:
        lines.append("- no agent has run since the boot")
    else:
        names |= {one.report.node: f"rank{one.rank}" for one in report.peers if one.report}
        since = f"phase `{report.phase.value}` since {report.since}: {report.message}"
        lines.append(f"- rank {report.rank} of {1 + len(report.peers)}; recipe `{report.recipe}`; {since}")
        if report.last_cause:
            lines.append(f"- the agent before ended: {report.last_cause} (hint: {report.last_hint or 'none'})")
        lines += (f"- ended {one.count} time(s) in a day: `{one.cause}`: {one.reason}" for one in report.restarts)
        lines += (f"- rank {one.rank}: contact `{one.contact.value}`" for one in report.peers)
    lines += ["", "| check | level | found | hint |", "|---|---|---|---|", *_findings(shown)]
    text = "\n".join(lines) + "\n"
    for name, place in names.items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", place, text) if len(name) > 2 else text
    return text


def _findings(shown: Shown) -> Iterator[str]:
    for one in shown.findings:
        if one.verdict.level.value not in ("ok", "skipped"):
            cells = (one.id, one.verdict.level.value, one.verdict.reason, one.verdict.hint)
            yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
