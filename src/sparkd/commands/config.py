"""`sparkd config`: what is configured here, and what set it."""

from __future__ import annotations

import argparse
import os

from sparkd.errors import ExitCode


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print what holds, and the file or variable that set it")
    form = show.add_mutually_exclusive_group()
    form.add_argument("--default", action="store_true", help="print the commented default file instead")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    actions.add_parser("check", help="say what is wrong with the settings and their recipe, or that they are good")


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
    from sparkd.recipes import load, lookup
    from sparkd.settings import load_with_origins

    loaded = load_with_origins(None, os.environ)
    recipe = load.load(loaded.settings.engine.recipe, lookup.folders())
    settings_from = ", ".join(str(path) for path in loaded.files) or "no file"
    return f"settings are good ({settings_from})\nrecipe {recipe.recipe.name} is good ({recipe.files[0]})"
