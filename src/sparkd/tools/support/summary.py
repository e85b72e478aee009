"""The summary of `sparkd capture`, to paste into a forum: what the agent reports, and what the checks find."""

import re
from collections.abc import Iterator

from sparkd.base.config import Settings
from sparkd.base.host import Host, versions
from sparkd.base.status import model
from sparkd.base.status.model import read_report
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.render import PreflightReport

LEAST_NAME_LENGTH = 3
"""A node's shorter name stays in the text: it may be a part of any sentence."""


def summarize(settings: Settings, host: Host) -> str:
    """A summary in Markdown for people who do not know the nodes, without the nodes' names."""
    preflight, report = examine_settings(settings, host), model.parse(read_report(host.files))
    programs = (f"{name} {text}" for name, text in versions.read_versions(host).items())
    lines = [f"**{', '.join(programs)}**", ""]
    placeholders = {host.name(): "this-node"}  # by the name that they replace
    if report is None:
        lines.append("- no agent has run since the boot")
    else:
        placeholders |= {peer.report.node: f"rank{peer.rank}" for peer in report.peers if peer.report}
        state = f"phase `{report.phase.value}` since {report.since}: {report.message}"
        lines.append(f"- rank {report.rank} of {1 + len(report.peers)}; recipe `{report.recipe}`; {state}")
        if report.last_cause:
            lines.append(f"- the agent before ended: {report.last_cause} (hint: {report.last_hint or 'none'})")
        lines += (f"- ended {end.count} time(s) in a day: `{end.cause}`: {end.reason}" for end in report.restarts)
        lines += (f"- rank {peer.rank}: contact `{peer.contact.value}`" for peer in report.peers)
    lines += ["", "| check | level | found | hint |", "|---|---|---|---|", *_format_findings(preflight)]
    text = "\n".join(lines) + "\n"
    for name, placeholder in placeholders.items():
        if len(name) >= LEAST_NAME_LENGTH:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", placeholder, text)
    return text


def _format_findings(preflight: PreflightReport) -> Iterator[str]:
    for finding in preflight.findings:
        if finding.verdict.level.value not in ("ok", "skipped"):
            cells = (finding.id, finding.verdict.level.value, finding.verdict.reason, finding.verdict.hint)
            yield f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
