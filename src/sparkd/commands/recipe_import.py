"""`sparkd recipe import`: recipes of other tools, as sparkd's own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparkd.errors import ConfigError, ExitCode


def arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("import", help="make recipes of those of eugr (version 1) and sparkrun (version 2)")
    parser.add_argument("path", metavar="FILE|DIR", type=Path)
    parser.add_argument(
        "-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="put in another default"
    )
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write NAME.yaml there; without it, print")
    parser.add_argument("--force", action="store_true", help="write over a recipe that is there")


def run(args: argparse.Namespace) -> int:
    """Print or write what can be imported, say what was left out. Raises ConfigError with every fault."""
    from sparkd.recipes.imports import files, overrides

    given = overrides.parse(args.overrides)
    faults: list[str] = []
    taken: set[str] = set()
    for path in files.found(args.path):
        try:
            result = files.imported(path, given, taken)
            if args.write:
                print(_write(args.write, result.name, result.text, args.force))
            else:
                print(f"{'---' if taken else ''}\n{result.text}".lstrip("\n"), end="")
        except ConfigError as error:
            faults.append(str(error))
            continue
        taken.add(result.name)
        for note in result.notes:
            print(note, file=sys.stderr)
    if faults:
        raise ConfigError("\n".join(faults))
    return ExitCode.GOOD


def _write(folder: Path, name: str, text: str, force: bool) -> Path:
    from sparkd.hands import files
    from sparkd.recipes import lookup

    path = folder / f"{name}{lookup.SUFFIX}"
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is no folder")
    try:
        files.write(path, text, 0o644, durable=True, over=force)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already", "--force writes over it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    return path
