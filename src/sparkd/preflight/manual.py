"""docs/checks.md: every check as a row, then its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.preflight.catalogue import CHECKS

if TYPE_CHECKING:
    from sparkd.preflight.check import About

HEAD = """\
<!-- Made by `make generate` from the checks themselves. -->
# Checks of `sparkd preflight`

They run in this order before every launch. `preflight.skip` and `preflight.downgrade` name them by id, and ids never
change. A check that could not look at all is `unknown`, which blocks; one that only ever warns, warns then.

"""
COLUMNS = ("id", "levels", "reads", "may fix", "known from")


def manual() -> str:
    """The whole file."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(_row(check.id, check.about) for check in CHECKS)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{HEAD}{table}{''.join(_page(check.id, check.about.page) for check in CHECKS)}"


def _row(check_id: str, about: About) -> tuple[str, ...]:
    levels = ", ".join(level.value for level in about.levels)
    link = f"[`{check_id}`](#{check_id})"
    return link, levels, _cell(about.reads), ", ".join(about.fixes) or "nothing", _cell(about.source)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _page(check_id: str, page: str) -> str:
    """As `--explain` prints it: its tables are lined up by hand."""
    return f"\n## {check_id}\n\n```text\n{page}\n```\n"
