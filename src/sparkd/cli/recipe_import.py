"""`sparkd recipe import`: recipes of other tools, printed or written with what they need, and the commands to run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkd.lib.errors import ConfigError, UsageError
from sparkd.lib.text import sanitize
from sparkd.recipes.importers import convert
from sparkd.recipes.importers.endpoint import Place
from sparkd.recipes.importers.source import Overrides, parse_overrides
from sparkd.recipes.loader import SUFFIX


def import_recipes(args: argparse.Namespace) -> None:
    """Print or write what can be imported, and print what was left out. Raises ConfigError with every fault."""
    overrides, place = parse_overrides(args.overrides), Place(mods=args.mods)
    if args.write:
        place = Place(_folder(args.write), args.mods)
    if "://" in args.path:
        _import_url(args, overrides, place)
        return
    faults: list[str] = []
    taken: set[str] = set()
    for path in convert.find_files(Path(args.path)):
        try:
            result = convert.import_file(path, overrides, taken, place)
            if args.write:
                _write(place.folder, result, args.force)
            else:
                print(f"{'---' if taken else ''}\n{result.text}".lstrip("\n"), end="")
        except ConfigError as error:
            faults.append(str(error))
            continue
        taken.add(result.name)
        _print_open(result, args.write)
    if faults:
        raise ConfigError("\n".join(faults))


def _folder(given: Path) -> Path:
    """The folder's absolute path, which docker must be able to mount from. Raises ConfigError."""
    folder = os.path.abspath(given)  # noqa: PTH100 - links stay as they are
    if ":" in folder or not folder.isprintable():
        raise ConfigError(f"{sanitize(folder)}: docker can mount nothing from there", "name a folder without a colon")
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder}: is no folder")
    return Path(folder)


def _import_url(args: argparse.Namespace, overrides: Overrides, place: Place) -> None:
    """What a stranger publishes is shown before it is written. Raises ConfigError, UsageError."""
    from sparkd.lib.download import download_text

    if args.write and not args.yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to confirm on", "--yes writes it; without --write it is only shown")
    text = download_text(args.path)
    path = Path(unquote(urlsplit(args.path).path).lstrip("/") or "imported")
    result = convert.import_text(text, path, overrides, (), place, beside=None)
    print(result.text, end="", flush=True)
    _print_open(result, args.write)
    if args.write and (args.yes or input(f"write it to {place.folder}? [y/N] ").strip().lower() in ("y", "yes")):
        _write(place.folder, result, args.force)


def _print_open(result: convert.Result, written: Path | None) -> None:
    for note in result.notes:
        print(note, file=sys.stderr)
    if result.files and not written:
        print(f"{result.name}: it needs {len(result.files)} files: --write FOLDER leaves them", file=sys.stderr)


def _write(folder: Path, result: convert.Result, force: bool) -> None:
    """The recipe comes last: where it is, the rest is, too."""
    from sparkd.actions import files

    path = folder / f"{result.name}{SUFFIX}"
    if not force and path.exists():
        raise ConfigError(f"{path}: exists already", "--force writes over it")
    try:
        for name, file in result.files.items():
            files.write(folder / name, file.content, 0o755 if file.executable else 0o644, durable=True)
        files.write(path, result.text, 0o644, durable=True, over=force)
    except OSError as error:
        where = error.filename or path
        raise ConfigError(f"{where}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    print(f"{path}\nTo an endpoint, in this order:")
    for number, step in enumerate(result.steps, 1):
        print(f"  {number}. {step}")
