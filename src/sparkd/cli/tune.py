"""`sparkd tune`: the recipe's kernel settings. Only `apply` sets them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkd.lib.errors import ExitCode, UsageError
from sparkd.lib.text import Table

if TYPE_CHECKING:
    from sparkd.actions.system_config import SysctlManager
    from sparkd.recipes.schema import Recipe

HEADINGS = ("SETTING", "NOW", "PROPOSED", "BEFORE SPARKD")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print what is set, what is proposed and why")
    actions.add_parser("apply", help="set what is proposed, now and at each boot")
    actions.add_parser("revert", help="take it back: the values that were set before")


def run(args: argparse.Namespace) -> int:
    if args.action != "show" and os.geteuid():
        raise UsageError("only root may set the kernel", f"sudo sparkd tune {args.action}")
    from sparkd.actions.system_config import SysctlManager
    from sparkd.config import load_settings
    from sparkd.recipes.loader import load_recipe, recipe_folders

    if args.action == "revert":
        lines = revert(SysctlManager())
    else:
        recipe = load_recipe(load_settings(os.environ).engine.recipe, recipe_folders()).recipe
        lines = (show if args.action == "show" else apply)(SysctlManager(), recipe)
    print("\n".join(lines))
    return ExitCode.GOOD


def show(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    manager.file_content()  # one not written by sparkd is an error here too
    proposed, before = recipe.host.sysctls, manager.saved()
    names = sorted({*proposed, *before})
    if names:
        cells = ((name, manager.current(name), proposed.get(name), before.get(name)) for name in names)
        yield str(Table([HEADINGS, *(tuple(cell or "-" for cell in row) for row in cells)]))
        yield ""
    yield _source(recipe)


def apply(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    from sparkd.actions.system_config import PATH

    if not recipe.host.sysctls:
        yield _source(recipe)
        yield from revert(manager)
        return
    yield from manager.apply(recipe.host.sysctls, render(recipe))
    yield f"{PATH} sets {len(recipe.host.sysctls)} at each boot; `sparkd tune revert` takes that back"


def revert(manager: SysctlManager) -> Iterator[str]:
    yield from manager.revert() or ["nothing to take back"]


def render(recipe: Recipe) -> str:
    """The file of sysctl.d."""
    from sparkd.actions.system_config import HEADER

    lines = [f"{name} = {value}" for name, value in sorted(recipe.host.sysctls.items())]
    head = f"{HEADER}; `sparkd tune revert` removes it and gives back what was set before."
    return "\n".join([head, f"# {_source(recipe)}", *lines, ""])


def _source(recipe: Recipe) -> str:
    if not recipe.host.sysctls:
        return f"recipe {recipe.name} has no kernel settings"
    return " ".join(f"from recipe {recipe.name}: {recipe.source}".split()).removesuffix(":")
