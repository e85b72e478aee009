"""`sparkd config`: what is configured here, and what set it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

from sparkd.errors import ConfigError, ExitCode


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
        from sparkd.settings import text

        print(text.default_file(), end="")
    else:
        from sparkd.settings import load_with_origins, text

        loaded = load_with_origins(None, os.environ)
        print(text.show_json(loaded) if args.json else text.show(loaded))
    return ExitCode.GOOD


def _check() -> str:
    """All that would end a start with 78, less what only a look at the node tells. Raises ConfigError with it all."""
    from sparkd import roles
    from sparkd.host import Host, cluster_key
    from sparkd.preflight.catalogue import IDS
    from sparkd.preflight.examine import chosen, downgraded
    from sparkd.recipes import load, lookup
    from sparkd.settings import load_with_origins

    loaded = load_with_origins(None, os.environ)
    wanted, host = loaded.settings.preflight, Host()
    # The recipe alone too: where the node's place is wrong, there is no plan that would look at it.
    several, path = len(loaded.settings.cluster.nodes) > 1, loaded.settings.cluster.key_file
    key = (partial(cluster_key.read, host.files, path),) if several and not os.geteuid() else ()
    recipe = partial(load.load, loaded.settings.engine.recipe, lookup.folders())
    _raise_all(
        *(partial(chosen, (), (one,), IDS) for one in wanted.skip),
        *(partial(downgraded, (), (one,), IDS) for one in wanted.downgrade),
        recipe,
        partial(roles.configured, loaded.settings, None, host),
        *key,
    )
    settings_from = ", ".join(str(path) for path in loaded.files) or "no file"
    found = recipe()
    unread = f"\n{path} was not looked at: only root can read it" if several and not key else ""
    return f"settings are good ({settings_from})\nrecipe {found.recipe.name} is good ({found.files[0]}){unread}"


def _raise_all(*steps: Callable[[], object]) -> None:
    """Take every step. Raises one ConfigError that says what each of them found wrong, once."""
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
