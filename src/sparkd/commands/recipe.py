"""`sparkd recipe`: which recipes there are, and what they say."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sparkd.lint.launch import Launch
    from sparkd.recipes.load import Loaded
    from sparkd.recipes.schema import Recipe

HEADINGS = ("NAME", "MODEL", "NODES", "CONTEXT", "SEQUENCES", "FROM")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="name every recipe")
    show = actions.add_parser("show", help="print a recipe with its bases, each value with its file and line")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("recipe", help="name or file")
    check = actions.add_parser("check", help="say what is wrong with recipes")
    check.add_argument("recipes", nargs="*", metavar="recipe", help="names or files; all recipes where there is none")
    actions.add_parser("schema", help="print the JSON Schema of recipe files")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        print(_table(list(_rows())))
    elif args.action == "show":
        loaded = _load(args.recipe)
        print(loaded.recipe.model_dump_json(by_alias=True, indent=2) if args.json else _shown(loaded))
    elif args.action == "check":
        _check(args.recipes)
    else:
        from sparkd.recipes.schema import json_schema

        print(json_schema())
    return ExitCode.GOOD


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
        where = loaded.origins.get(issue.at) or str(loaded.files[0])
        (errors if issue.blocks else warnings).append(f"{where}: {issue.reason} ({issue.hint})")
    return errors, warnings


def _launch(recipe: Recipe) -> Launch:
    """The recipe's engine, wherever it will run: what a placeholder stands for is not known."""
    from sparkd.launch import command_line, placeholders
    from sparkd.lint import words
    from sparkd.lint.launch import Launch
    from sparkd.recipes.schema import KV_CACHE_TOKENS

    flags = words.flags(command_line.words(recipe.args))
    tokens = recipe.expect.get(KV_CACHE_TOKENS)
    writable = (volume.target for volume in recipe.container.volumes if not volume.read_only)
    return Launch(
        flags={flag: None if text and placeholders.named(text) else text for flag, text in flags.items()},
        env={name: text for name, text in recipe.env.items() if text is not None},
        gpu=recipe.container.gpus == "all",
        kept=(*recipe.caches.values(), *writable),
        pool_tokens=tokens if isinstance(tokens, int) else None,
    )


def _rows() -> Iterator[tuple[str, ...]]:
    from sparkd.recipes import lookup

    for place in lookup.places(lookup.folders()):
        try:
            recipe = _load(place.name).recipe
        except ConfigError:
            yield place.name, "broken: `sparkd recipe check` says why", "", "", "", str(place.path)
            continue
        nodes = recipe.nodes
        yield (
            place.name,
            recipe.model.path,
            str(nodes.min) if nodes.min == nodes.max else f"{nodes.min}-{nodes.max}",
            str(recipe.args.get("max-model-len") or "-"),
            str(recipe.args.get("max-num-seqs") or "-"),
            str(place.path),
        )


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def _shown(loaded: Loaded) -> str:
    import json

    lines: list[tuple[str, str]] = []
    for name, value in loaded.recipe.model_dump(mode="json", by_alias=True, exclude_none=False).items():
        entries = value.items() if isinstance(value, dict) and name != "expect" else [("", value)]
        for key, one in entries:
            dotted = f"{name}.{key}" if key else name
            origin = loaded.origins.get(dotted)
            if origin:
                lines.append((f"{dotted}: {json.dumps(one, ensure_ascii=False)}", origin))
    return "\n".join(f"{text:<60} # {origin}" for text, origin in lines)
