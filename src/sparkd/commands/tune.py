"""`sparkd tune`: settings of the kernel that the recipe asks for. Nothing sets them but `apply`."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode, UsageError
from sparkd.lib.tables import Table

if TYPE_CHECKING:
    from sparkd.hands.tune import Change, Tuning
    from sparkd.recipes.tuning import Proposal

HEADINGS = ("SETTING", "NOW", "PROPOSED", "IN FILE", "BEFORE SPARKD")
WIDTH = 120


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print what is set, what is proposed and why")
    actions.add_parser("apply", help="set what is proposed, now and at each boot")
    actions.add_parser("revert", help="take it back: the values that were set before")


def run(args: argparse.Namespace) -> int:
    if args.action != "show" and os.geteuid():
        raise UsageError("only root may set the kernel", f"sudo sparkd tune {args.action}")
    from sparkd.hands.tune import Tuning

    tuning = Tuning()
    if args.action == "show":
        lines = list(shown(tuning, _proposals()))
    elif args.action == "apply":
        lines = list(applied(tuning, _proposals()))
    else:
        lines = list(reverted(tuning))
    print("\n".join(lines))
    return ExitCode.GOOD


def _proposals() -> tuple[Proposal, ...]:
    from sparkd import settings
    from sparkd.recipes import load, lookup, tuning

    return tuning.proposals(load.load(settings.load(None, os.environ).engine.recipe, lookup.folders()).recipe)


def shown(tuning: Tuning, proposals: Sequence[Proposal]) -> Iterator[str]:
    from sparkd.hands.tune import PATH
    from sparkd.host import sysctl

    in_file, before = sysctl.assigned(tuning.in_file() or ""), tuning.remembered()
    proposed = {one.name: one.value for one in proposals}
    names = sorted({*proposed, *in_file, *before})
    rows = [
        (name, tuning.now(name) or "-", *(table.get(name, "-") for table in (proposed, in_file, before)))
        for name in names
    ]
    yield from str(Table([HEADINGS, *rows])).splitlines()
    yield from ("", *(line for one in proposals for line in _sourced(one, "")))
    for name, file in sorted(tuning.set_at_boot(names).items()):
        if file != PATH:
            yield f"{name} is set at boot by {file}" + (f", after {PATH}" if name in in_file else "")


def applied(tuning: Tuning, proposals: Sequence[Proposal]) -> Iterator[str]:
    from sparkd.hands.tune import PATH

    changes = tuning.apply({one.name: one.value for one in proposals}, render(proposals))
    yield from _changed(changes)
    overruled = tuning.set_at_boot(one.name for one in proposals)
    yield from (f"{name}: at boot {file} has the last word" for name, file in overruled.items() if file != PATH)
    yield f"{PATH} sets {len(proposals)} at each boot; `sparkd tune revert` takes that back"


def reverted(tuning: Tuning) -> Iterator[str]:
    from sparkd.hands.tune import PATH, STATE

    had_file, knew = tuning.in_file() is not None, bool(tuning.remembered())
    yield from _changed(tuning.revert())
    if had_file:
        yield f"removed {PATH}"
    if had_file and not knew:
        yield f"{STATE} is gone, and with it what the values were: those of now stay until the next boot"
    if not had_file and not knew:
        yield "nothing to take back"


def render(proposals: Sequence[Proposal]) -> str:
    """The file of sysctl.d, each setting under the words that say where it comes from."""
    from sparkd.hands.tune import HEADER

    head = f"{HEADER}; `sparkd tune revert` removes it and gives back what was set before.\n"
    return head + "".join(
        "\n" + "\n".join([*_sourced(one, "# "), f"{one.name} = {one.value}"]) + "\n" for one in proposals
    )


def _sourced(one: Proposal, prefix: str) -> list[str]:
    return textwrap.wrap(f"{one.name}: {one.source}", WIDTH, initial_indent=prefix, subsequent_indent=f"{prefix}  ")


def _changed(changes: Iterable[Change]) -> Iterator[str]:
    yield from (f"{one.name}: {one.before} -> {one.after}" for one in changes)
