"""`sparkd recipe`: which recipes there are, and what they say."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.commands import console, recipe_import
from sparkd.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sparkd import settings
    from sparkd.lib.tables import Table
    from sparkd.lint.launch import Launch
    from sparkd.recipes.load import Loaded
    from sparkd.recipes.schema import Recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="name every recipe")
    show = actions.add_parser("show", help="print what would be launched, each value with who says it and where")
    show.add_argument("--json", action="store_true", help="print the recipe alone, as one JSON object")
    show.add_argument("recipe", help="name or file")
    diff = actions.add_parser("diff", help="print where two recipes mean something else")
    diff.add_argument("left", metavar="recipe", help="name or file")
    diff.add_argument("right", metavar="other", help="name or file")
    check = actions.add_parser("check", help="say what is wrong with recipes")
    check.add_argument("recipes", nargs="*", metavar="recipe", help="names or files; all recipes where there is none")
    recipe_import.arguments(actions)
    actions.add_parser("schema", help="print the JSON Schema of recipe files")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        from sparkd.commands.recipe_tables import listed

        console.show([listed()])
    elif args.action == "show":
        print(_load(args.recipe).recipe.model_dump_json(by_alias=True, indent=2) if args.json else _shown(args.recipe))
    elif args.action == "diff":
        console.show([_diff(args.left, args.right)])
    elif args.action == "check":
        _check(args.recipes)
    elif args.action == "import":
        return recipe_import.run(args)
    else:
        from sparkd.recipes.schema import json_schema

        print(json_schema())
    return ExitCode.GOOD


def _shown(word: str) -> str:
    from sparkd.commands.recipe_tables import shown
    from sparkd.recipes.told import told

    return shown(told(_load(word), _settings()))


def _settings() -> settings.Loaded | None:
    """None where they are wrong, which is said, and hides no recipe."""
    from sparkd import settings

    try:
        return settings.load_with_origins(None, os.environ)
    except ConfigError as error:
        print(f"settings are left out: {error.reason}", file=sys.stderr)
        return None


def _diff(left: str, right: str) -> str | Table:
    from sparkd.commands.recipe_tables import compared
    from sparkd.recipes.meaning import differences

    one, other = _load(left).recipe, _load(right).recipe
    return compared(left, right, differences(one, other))


def _load(word: str) -> Loaded:
    """`word` is a name, or a path where it looks like one."""
    from sparkd.recipes import load, lookup

    is_path = "/" in word or word.endswith(lookup.SUFFIX)
    return load.load(str(Path(word).absolute()) if is_path else word, lookup.folders())


def _check(words: list[str]) -> None:
    """Print what is good and what could be better. Raises ConfigError with all that is wrong."""
    from sparkd.recipes import lookup

    faults: list[str] = []
    for word in words or [place.name for place in lookup.places(lookup.folders())]:
        try:
            loaded = _load(word)
        except ConfigError as error:
            faults.append(str(error))
            continue
        errors, warnings = _linted(loaded)
        faults += errors
        for warning in warnings:
            print(f"warning: {warning}")
        if not errors:
            but = f", with {len(warnings)} warning{'s' * (len(warnings) > 1)}" if warnings else ""
            print(f"{loaded.recipe.name} is good{but} ({', '.join(str(path) for path in loaded.files)})")
    if faults:
        raise ConfigError("\n".join(faults))


def _linted(loaded: Loaded) -> tuple[list[str], list[str]]:
    """What the rules of plan-lint see in a recipe: errors and warnings, each with its file and line."""
    from sparkd.lint import rules

    errors: list[str] = []
    warnings: list[str] = []
    for issue in rules.issues(_launch(loaded.recipe)):
        positive = issue.at.replace("args.no-", "args.", 1)
        where = loaded.origins.get(issue.at) or loaded.origins.get(positive) or str(loaded.files[0])
        (errors if issue.blocks else warnings).append(f"{where}: {issue.reason} ({issue.hint})")
    return errors, warnings


def _launch(recipe: Recipe) -> Launch:
    """The recipe's engine, wherever it will run: what a placeholder stands for is not known."""
    from sparkd.launch import command_line, placeholders
    from sparkd.lint import flag_words, words
    from sparkd.lint.launch import Launch
    from sparkd.recipes.schema import KV_CACHE_TOKENS

    said = command_line.words(recipe.args)
    flags = words.flags(said)
    tokens = recipe.expect.get(KV_CACHE_TOKENS)
    writable = (volume.target for volume in recipe.container.volumes if not volume.read_only)
    return Launch(
        flags={flag: None if text and placeholders.named(text) else text for flag, text in flags.items()},
        env={name: text for name, text in recipe.env.items() if text is not None},
        gpu=recipe.container.gpus == "all",
        kept=(*recipe.caches.values(), *writable),
        pool_tokens=tokens if isinstance(tokens, int) else None,
        given=flag_words.given([*recipe.image.entrypoint, *said], placeholders.named),
        extra=recipe.flags.extra,
    )
