"""`sparkd config`: show the settings and their sources, or check them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

from sparkd.lib.errors import ConfigError, ExitCode


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print what holds, and the file or variable that set it")
    form = show.add_mutually_exclusive_group()
    form.add_argument("--default", action="store_true", help="print the commented default file instead")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    actions.add_parser(
        "check", help="say what is wrong with the settings, their recipe and its plan, or that they are good"
    )


def run(args: argparse.Namespace) -> int:
    if args.action == "check":
        print(_check())
    elif args.default:
        from sparkd.config import reference

        print(reference.default_file(), end="")
    else:
        from sparkd.config import load_with_origins, reference

        loaded = load_with_origins(os.environ)
        print(reference.show_json(loaded) if args.json else reference.show(loaded))
    return ExitCode.GOOD


def _check() -> str:
    """Check all that would end a start with 78, except what depends on the node's state. Raises ConfigError."""
    from sparkd.cluster import auth, membership
    from sparkd.config import load_with_origins
    from sparkd.host import Host
    from sparkd.preflight.runner import chosen, downgraded
    from sparkd.recipes.loader import load_recipe, recipe_folders

    loaded = load_with_origins(os.environ)
    wanted, host = loaded.settings.preflight, Host()
    # The recipe by itself too: where the node's place is wrong, no plan would read it.
    several, path = len(loaded.settings.cluster.nodes) > 1, loaded.settings.cluster.key_file
    key = (partial(auth.read_keys, host.files, path),) if several and not os.geteuid() else ()
    recipe = partial(load_recipe, loaded.settings.engine.recipe, recipe_folders())
    _raise_all(
        *(partial(chosen, (), (one,)) for one in wanted.skip),
        *(partial(downgraded, (), (one,)) for one in wanted.downgrade),
        recipe,
        partial(membership.configured_context, loaded.settings, host),
        *key,
    )
    settings_from = ", ".join(str(path) for path in loaded.files) or "no file"
    found = recipe()
    unread = f"\n{path} was not looked at: only root can read it" if several and not key else ""
    return f"settings are good ({settings_from})\nrecipe {found.recipe.name} is good ({found.files[0]}){unread}"


def _raise_all(*steps: Callable[[], object]) -> None:
    """Take every step. Raises one ConfigError with all that they found wrong."""
    reasons, hints = dict[str, None](), dict[str, None]()
    for step in steps:
        try:
            step()
        except ConfigError as error:
            reasons[error.reason] = None
            if error.hint:
                hints[error.hint] = None
    if reasons:
        raise ConfigError("\n".join(reasons), "; ".join(hints))
