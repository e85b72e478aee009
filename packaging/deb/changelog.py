"""CHANGELOG.md in the words of Debian's changelog format."""

from __future__ import annotations

import re
import textwrap
from datetime import UTC, datetime
from email.utils import format_datetime

from deb.errors import BuildError

MAINTAINER = "sparkd maintainers <maintainers@sparkd.invalid>"

_SECTION = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$")


def debian(markdown: str, version: str, epoch: int) -> str:
    """One entry for each section with bullets; the topmost is this build's, whatever it calls itself."""
    now = datetime.fromtimestamp(epoch, UTC)
    entries: list[str] = []
    for name, date, bullets in _sections(markdown):
        when = datetime.fromisoformat(f"{date}T00:00:00+00:00") if date and entries else now
        entries.append(_entry(name if entries else version, when, bullets))
    return "\n".join(entries) or _entry(version, now, ["Work in progress."])


def notes(markdown: str, version: str) -> str:
    """The version's section as it stands; of a commit without a release tag, what is unreleased."""
    name = "Unreleased" if "~git" in version else version
    _, heading, rest = markdown.partition(f"\n## [{name}]")
    if not heading:
        raise BuildError(
            f"CHANGELOG.md has no section for it; begin one below Unreleased:\n## [{version}] - YYYY-MM-DD"
        )
    return rest.partition("\n")[2].partition("\n## [")[0].strip() + "\n"


def _entry(version: str, when: datetime, bullets: list[str]) -> str:
    lines = [textwrap.fill(one, 78, initial_indent="  * ", subsequent_indent="    ") for one in bullets]
    body = "\n".join(lines)
    return f"sparkd ({version}) unstable; urgency=medium\n\n{body}\n\n -- {MAINTAINER}  {format_datetime(when)}\n"


def _sections(markdown: str) -> list[tuple[str, str | None, list[str]]]:
    sections: list[tuple[str, str | None, list[str]]] = []
    for line in markdown.splitlines():
        if match := _SECTION.match(line):
            sections.append((match["version"], match["date"], []))
        elif sections and line.startswith("- "):
            sections[-1][2].append(line.removeprefix("- "))
        elif sections and line.startswith("  ") and sections[-1][2]:
            sections[-1][2][-1] += f" {line.strip()}"
    return [section for section in sections if section[2]]
