"""`sparkd recipe import`: print or write recipes of other tools with what they need, and the commands to run."""

import argparse
import os
import shlex
import sys
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from sparkd.base.config import load_settings
from sparkd.base.host import Host, docker_image
from sparkd.base.host.files import Files
from sparkd.base.host.ownership import find_writable
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import ConfigError, ExitCode, SparkdError, UsageError
from sparkd.base.lib.text import printable, sanitize
from sparkd.base.lib.text_file import LIMIT_BYTES, read_owned_file
from sparkd.base.recipes.lookup import SUFFIX
from sparkd.tools.cli import console
from sparkd.tools.importers import convert
from sparkd.tools.importers.bundle import ADMINISTRATORS, Place
from sparkd.tools.importers.forms import Form, read_container_form, read_form
from sparkd.tools.importers.kinds import unreadable_error
from sparkd.tools.importers.source import Overrides, parse_overrides

NOT_YET = "this does not lead to an endpoint yet"


def import_recipes(args: argparse.Namespace) -> ExitCode:
    """Print or write what can be imported, and print what was left out. Raises ConfigError with every fault.

    Returns BLOCKED where that does not lead to an endpoint yet.
    """
    if bool(args.path) == bool(args.container):
        raise UsageError("name a file, or --container NAME")
    overrides, place = parse_overrides(args.overrides), _make_place(args)
    if any("://" in word for word in args.path):
        return _import_url(args, overrides, place)
    if args.container or args.path[1:] or args.path == ["-"]:
        return _deliver(args, place, convert.import_forms(_read_forms(args, overrides), (), place))
    if (args.service or args.image) and Path(args.path[0]).is_dir():
        raise UsageError("--service and --image are for one file", "leave them out, or name that file")
    code, faults = ExitCode.GOOD, list[str]()
    taken_names: set[str] = set()
    for path in convert.find_files(Path(args.path[0])):
        try:
            conversion = convert.import_file(path, overrides, taken_names, place)
            code = _deliver(args, place, conversion, "---\n" * bool(taken_names)) or code
        except ConfigError as error:
            faults.append(str(error))
            continue
        taken_names.add(conversion.name)
    if faults:
        raise ConfigError("\n".join(faults))
    return code


def _deliver(args: argparse.Namespace, place: Place, conversion: convert.Conversion, before: str = "") -> ExitCode:
    """Write the recipe, or print it behind the text `before`; and print its notes."""
    if args.write:
        write(place, conversion, args.force)
    else:
        print(before + conversion.text, end="")
    _print_notes(conversion, args.write)
    return ExitCode.BLOCKED if conversion.missing else ExitCode.GOOD


def _read_forms(args: argparse.Namespace, overrides: Overrides) -> list[Form]:
    """Read the container, or the files that start one engine together. Raises ConfigError."""
    if args.container:
        return [read_container_form(args.container, Host())]
    forms: list[Form] = []
    for name in args.path:
        path = Path("standard input" if name == "-" else name)
        try:
            text, owner = (_read_input(), None) if name == "-" else read_owned_file(path)
        except FileNotFoundError:
            raise ConfigError(f"{path}: does not exist") from None
        except UnicodeDecodeError:
            raise ConfigError("standard input: is no UTF-8 text") from None
        form = read_form(text, path, overrides, args.service, owner=owner)
        if form is None:
            fault = "line 1: is no command line, script, compose file or unit that starts vLLM"
            raise unreadable_error(text, path, fault, "a recipe of another tool is imported alone, by its file")
        forms.append(form)
    return forms


def _read_input() -> str:
    """Read standard input, within bounds. Raises ConfigError, UnicodeDecodeError."""
    console.announce_paste("it")
    text = sys.stdin.read(LIMIT_BYTES + 1)
    if len(text) > LIMIT_BYTES:  # the rest may hold flags
        raise ConfigError(f"standard input: is larger than {LIMIT_BYTES} bytes")
    return text


def _make_place(args: argparse.Namespace) -> Place:
    """The folders of the import, by absolute paths from which docker can mount. Raises ConfigError."""
    find_image = cache(partial(docker_image.find_image, Host()))  # one that docker does not show may be pulled again
    place = Place(mods=args.mods, find_image=find_image, service=args.service, image=args.image)
    with suppress(SparkdError):  # the printed commands report a wrong configuration
        place = replace(place, models=load_settings(os.environ).engine.models_dir)
    if not args.write:
        return place
    folder = os.path.abspath(args.write)  # noqa: PTH100 - links stay as they are
    if ":" in folder or not folder.isprintable():
        raise ConfigError(f"{sanitize(folder)}: docker can mount nothing from there", "name a folder without a colon")
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder}: is no folder")
    used_folder = ADMINISTRATORS if find_writable(Files(), folder) else Path(folder)
    return replace(place, folder=used_folder, write_folder=Path(folder))


def _import_url(args: argparse.Namespace, overrides: Overrides, place: Place) -> ExitCode:
    """Print what a stranger publishes, and write it once that is confirmed. Raises ConfigError, UsageError."""
    from sparkd.tools.importers.download import download_text

    if args.write and not args.yes and not sys.stdin.isatty():
        raise UsageError("there is no terminal to confirm on", "--yes writes it; without --write it is only shown")
    if args.path[1:]:
        raise UsageError("a URL is imported alone", "save the files, and name them together")
    text = download_text(args.path[0])
    path = Path(unquote(urlsplit(args.path[0]).path).lstrip("/") or "imported")
    conversion = convert.import_text(text, path, overrides, (), place, None)
    print(conversion.text, end="", flush=True)
    _print_notes(conversion, args.write)
    if args.write and (args.yes or console.confirm(f"write it to {place.write_folder}? [y/N] ")):
        write(place, conversion, args.force)
    return ExitCode.BLOCKED if conversion.missing else ExitCode.GOOD


def _print_notes(conversion: convert.Conversion, written: Path | None) -> None:
    for note in conversion.notes:
        print(note, file=sys.stderr)
    if conversion.missing and not written:
        print(f"{conversion.name}: {NOT_YET}: what is missing is in its comments", file=sys.stderr)
    if conversion.files and not written:
        print(f"{conversion.name}: its files, {len(conversion.files)}: --write FOLDER leaves them", file=sys.stderr)


def _refuse_existing(place: Place, name: str) -> None:
    """Raise ConfigError where a recipe of this name exists, or would be hidden. Elsewhere the latter is printed."""
    file = f"{name}{SUFFIX}"
    for path in (place.write_folder / file, place.folder / file):
        if path.exists():
            raise ConfigError(f"{path}: exists already", "--force writes over it")
    if (recipes_dir() / file).exists():
        reason = f"{name} is a recipe of sparkd, which this one would hide"
        if place.write_folder.resolve() == ADMINISTRATORS.resolve():
            raise ConfigError(reason, "--force writes it")
        print(f"{reason} in {ADMINISTRATORS}", file=sys.stderr)


def write(place: Place, conversion: convert.Conversion, force: bool) -> None:
    """Write the files, and the recipe last: where that exists, they do, too. Raises ConfigError, SharedFolderError."""
    from sparkd.agent.actions import files
    from sparkd.agent.actions.shared_folders import SharedFolderError, run_as_owner

    folder, recipe_file = place.write_folder, f"{conversion.name}{SUFFIX}"
    if not force:
        _refuse_existing(place, conversion.name)

    def write_files() -> None:
        for name, file in conversion.files.items():  # in a folder that is named by their content
            files.write(folder / name, file.content, 0o755 if file.executable else 0o644, durable=True, overwrite=True)
        files.write(folder / recipe_file, conversion.text, 0o644, durable=True, overwrite=force)

    try:
        run_as_owner(folder, write_files)
    except SharedFolderError:
        raise
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise ConfigError(f"{where}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    for old in sorted(folder.glob(f"{conversion.name}.mods-*")):
        if not any(name.startswith(f"{old.name}/") for name in conversion.files):
            print(f"{printable(str(old))}: of an earlier import, and no longer used", file=sys.stderr)
    _print_next(conversion, folder / recipe_file)


def _print_next(conversion: convert.Conversion, written: Path) -> None:
    print(written)
    if conversion.missing:
        print(f"{NOT_YET[0].upper()}{NOT_YET[1:]}. What is missing first:")
        for line in conversion.missing:
            print(f"  {line}")
        print(f"The steps after that are in its comments:\n  {shlex.join(['less', str(written)])}")
        return
    print("To an endpoint, in this order:")
    for number, step in enumerate(conversion.steps, 1):
        print(f"  {number}. {step}")
