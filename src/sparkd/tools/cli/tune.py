"""`sparkd tune`: the recipe's kernel settings, and a watchdog that resets a frozen machine."""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sparkd.base.cluster.membership import current_switch, find_place, follows_head, make_context
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.kernel import read_recovery
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.text import Table
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.recipes.lookup import recipe_folders
from sparkd.base.recipes.schema import Recipe
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_action
from sparkd.tools.setup.sysctl import HEADER, PATH, SysctlManager
from sparkd.tools.setup.watchdog import PANIC, apply_watchdog, revert_watchdog, with_panic

HEADINGS = ("SETTING", "NOW", "PROPOSED", "BEFORE SPARKD")


def add_tune(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    console.add_json(add_action(actions, "show", "print the present and the proposed values, and why"))
    apply = add_action(actions, "apply", "set the proposed values, now and at each boot")
    frozen = "also have a machine that freezes or panics reset itself, by its watchdog and kernel.panic"
    apply.add_argument("--watchdog", action="store_true", help=frozen)
    add_action(actions, "revert", "restore the values that were set before `apply`")
    parser.set_defaults(run=tune)


def tune(args: argparse.Namespace) -> None:
    if args.action != "show" and os.geteuid():
        raise UsageError("only root may set the kernel", AS_ROOT)
    if args.action == "show" and args.json:
        manager = SysctlManager(Path("/"))
        console.show_table(list_settings(manager, _keep_panic(find_recipe_in_use(), manager)), "settings", as_json=True)
        return
    chosen = args.action == "apply" and args.watchdog
    for line in run_action(args.action, Path("/"), find_recipe_in_use, watchdog=chosen):
        print(line, flush=True)


def run_action(
    action: str, root: Path, recipe_in_use: Callable[[], Recipe], *, watchdog: bool = False
) -> Iterator[str]:
    """Carry out show, apply or revert, and yield the lines to print as they come, so that an error follows them."""
    manager = SysctlManager(root)
    if action == "revert":
        try:
            yield from (reverted := manager.revert())
        finally:
            yield from (removed := revert_watchdog(root))
        yield from () if reverted or removed else ("nothing to take back",)
        return
    plain_recipe = recipe_in_use()
    recipe = with_panic(plain_recipe) if watchdog else _keep_panic(plain_recipe, manager)
    if action == "show":
        hint = "; to have it reset itself: sudo sparkd tune apply --watchdog" if recipe is plain_recipe else ""
        yield from (*show_tuning(manager, recipe), f"{read_recovery(Files(str(root))).text}{hint}")
        return
    yield from apply_tuning(manager, recipe)
    yield from apply_watchdog(root) if watchdog else ()


def _keep_panic(recipe: Recipe, manager: SysctlManager) -> Recipe:
    """The recipe, with the settings of PANIC where they are applied: they stay until `revert`."""
    return with_panic(recipe) if PANIC.keys() <= manager.saved().keys() else recipe


def find_recipe_in_use(root: Path = Path("/")) -> Recipe:
    settings, host = load_settings(os.environ, root), Host(root)
    # A worker uses its head's recipe, with the kernel settings of this node's own recipe of that name.
    if settings.cluster.follow_head and follows_head(settings, find_place(settings, host)):
        return make_context(settings, host).recipe
    switch = current_switch(settings, host)
    if switch is not None and switch.chosen is not None:
        return switch.chosen.recipe
    return load_recipe(settings.engine.recipe, recipe_folders(root)).recipe


def show_tuning(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    table = list_settings(manager, recipe)
    yield from (str(table), "") if table.rows[1:] else ()
    yield _describe_source(recipe)


def list_settings(manager: SysctlManager, recipe: Recipe) -> Table:
    manager.file_content()  # raises for a file that sparkd has not written
    proposed, previous = recipe.host.sysctls, manager.saved()
    names = sorted({*proposed, *previous})
    cells = ((name, manager.current(name), proposed.get(name), previous.get(name)) for name in names)
    return Table([HEADINGS, *(tuple(cell or "-" for cell in row) for row in cells)])


def apply_tuning(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    if not recipe.host.sysctls:
        yield _describe_source(recipe)
        yield from manager.revert() or ["nothing to take back"]
        return
    yield from manager.apply(recipe.host.sysctls, sysctl_file(recipe))
    yield f"{PATH} sets {len(recipe.host.sysctls)} at each boot; `sparkd tune revert` takes that back"


def sysctl_file(recipe: Recipe) -> str:
    lines = [f"{name} = {value}" for name, value in sorted(recipe.host.sysctls.items())]
    head = f"{HEADER}; `sparkd tune revert` removes it and gives back what was set before."
    return "\n".join([head, f"# {_describe_source(recipe)}", *lines, ""])


def _describe_source(recipe: Recipe) -> str:
    if not recipe.host.sysctls:
        return f"recipe {recipe.name} has no kernel settings"
    return " ".join(f"from recipe {recipe.name}: {recipe.source}".split()).removesuffix(":")
