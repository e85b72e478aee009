"""`sparkd recipe`: list, show, compare and check recipes, and import those of other tools."""

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import asdict

from sparkd.base import config
from sparkd.base.host import CachedHost, Host, docker, weights
from sparkd.base.host.docker_image import read_image
from sparkd.base.host.image_origin import read_built
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.errors import ConfigError, ExitCode
from sparkd.base.lib.text import Table, counted, printable, sanitize
from sparkd.base.recipes import comparison, explanation, loader, lookup
from sparkd.base.recipes.schema import Recipe, json_schema
from sparkd.base.state.vllm_tables import find_recipe_table
from sparkd.base.vllm.args import parse_count
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_action, name_or_path
from sparkd.tools.node.recipe_lint import GB10_BYTES, lint

HEADINGS = ("NAME", "NODES", "CONTEXT", "TOKENS/S", "MODEL")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_action(actions, "list", "list all recipes: nodes, context, expected speed, model")
    listing.set_defaults(run=list_recipes)
    console.add_json(listing)
    show = add_action(actions, "show", "print what would be launched, each value with where it comes from")
    show.set_defaults(run=show_recipe)
    show.add_argument("--json", action="store_true", help="print the recipe alone, as one JSON object")
    show.add_argument("recipe", help="name or file")
    diff = add_action(actions, "diff", "print what differs between two recipes in what they mean")
    diff.set_defaults(run=diff_recipes)
    diff.add_argument("left", metavar="recipe", help="name or file")
    diff.add_argument("right", metavar="other", help="name or file")
    console.add_json(diff)
    _add_check(add_action(actions, "check", "say what is wrong with recipes"))
    _add_import(add_action(actions, "import", "convert recipes of other tools, and what starts vLLM today"))
    schema = add_action(actions, "schema", "print the JSON Schema of recipe files")
    schema.set_defaults(run=lambda _args: print(json_schema()))


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=check_recipes)
    parser.add_argument("recipes", nargs="*", metavar="recipe", help="names or files; all recipes where there is none")
    console.add_json(parser)
    memory_help = "judge them for nodes with this much memory (128)"
    parser.add_argument("--memory", type=_parse_gigabytes, default=GB10_BYTES, metavar="GB", help=memory_help)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="judge them with the model in this folder")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=import_recipes)
    path_help = "files, folders, the https URL of a raw file, or - for stdin"
    parser.add_argument("path", nargs="*", metavar="FILE|DIR|URL", help=path_help)
    parser.add_argument("--container", metavar="NAME", help="import this container of this machine's docker")
    parser.add_argument("--service", default="", metavar="NAME", help="service of a compose file with several")
    parser.add_argument("--image", default="", metavar="REF", help="image for a vLLM that is started with none")
    overrides_help = "set a default or placeholder"
    parser.add_argument("-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=overrides_help)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write NAME.yaml and what it needs there")
    parser.add_argument("--mods", type=Path, metavar="FOLDER", help="another folder in which to look for mods")
    parser.add_argument("--yes", action="store_true", help="write a recipe from a URL without a question")
    parser.add_argument("--force", action="store_true", help="overwrite a recipe of the same name")


def _parse_gigabytes(text: str) -> int:
    """Bytes that a node sold with so many GB has: its firmware keeps as large a part as that of a Spark."""
    if not (number := parse_count(text, 9999)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GB, such as 64")
    return GB10_BYTES * number // 128


def list_recipes(args: argparse.Namespace) -> None:
    console.show_table(Table([HEADINGS, *_make_rows()], heading=True, one_line=True), "recipes", as_json=args.json)


def _make_rows() -> Iterator[tuple[str, ...]]:
    """A row for every recipe that has a name."""
    folders = lookup.recipe_folders()
    for name, path in lookup.find_recipes(folders).items():
        location = "" if path.parent == recipes_dir() else f" ({path})"
        try:
            recipe = loader.load_recipe(name, folders).recipe
        except ConfigError:
            yield name, "", "", "", f"broken: `sparkd recipe check` says why{location}"
            continue
        nodes = recipe.nodes
        yield (
            name,
            str(nodes.min) if nodes.min == nodes.max else f"{nodes.min}-{nodes.max}",
            str(recipe.args.get("max-model-len") or "-"),
            _format_rates(recipe),
            ("you build its image; " if recipe.image.build else "") + sanitize(recipe.model.path) + location,
        )


def _format_rates(recipe: Recipe) -> str:
    """The rates that the recipe expects of one request alone, and of the most requests at once."""
    rates = recipe.expect.get("decode_tokens_per_second")
    if not isinstance(rates, Mapping):
        return "-"
    by_requests = {count: rate for name, rate in rates.items() if (count := parse_count(name, 999_999)) is not None}
    counts = sorted(by_requests)
    extremes = dict.fromkeys(counts[:1] + counts[-1:])
    return " to ".join(sanitize(str(by_requests[count]), 20) for count in extremes) or "-"


def show_recipe(args: argparse.Namespace) -> None:
    """Print a line for each value: what it is, its source, and the recipe's own value where another one counts."""
    loaded = _load_recipe(args.recipe)
    if args.json:
        print(json.dumps(loaded.recipe.model_dump(mode="json", by_alias=True), indent=2))
        return
    for explained in explanation.explain(loaded, _load_settings()):
        replaced_value = sanitize(json.dumps(explained.instead_of, ensure_ascii=False), 60)
        replaced = "" if explained.instead_of is None else f", instead of {replaced_value}"
        value = json.dumps(explained.value, ensure_ascii=False)
        _print_value(f"{explained.key}: {value}", f"{explained.by}: {explained.where}{replaced}")
    _print_built(loaded.recipe.image.ref)


def _print_value(value: str, source: str) -> None:
    print(printable(f"{value:<60} # {source}"))


def _print_built(ref: str) -> None:
    """Print how the image that is here was built, where sparkd built it and this user may query docker."""
    known = None
    with suppress(DockerError):  # such as for users other than root
        known = docker.query(Host(), lambda reader: (read_image(reader, ref), read_built(reader, ref)))
    image, built = known or (None, None)
    source = f"docker: the image that is here, of {image.created[:10]}" if image else ""
    for number, line in enumerate(built.lines() if built else ()):
        _print_value(f"image.built[{number}]: {json.dumps(line)}", source)


def _load_settings() -> config.LoadedSettings | None:
    """The settings; None where they are wrong, with the reason printed."""
    try:
        return config.load_with_origins(os.environ)
    except ConfigError as error:
        print(f"settings are left out: {error.reason}", file=sys.stderr)
        return None


def diff_recipes(args: argparse.Namespace) -> None:
    differences = comparison.compare_recipes(_load_recipe(args.left).recipe, _load_recipe(args.right).recipe)
    if args.json:
        console.show_json(differences=[asdict(difference) for difference in differences])
        return
    rows = [(difference.key, difference.left or "-", difference.right or "-") for difference in differences]
    table = Table([("", args.left, args.right), *rows], heading=True, flexible=2)
    console.show([table if differences else f"{args.left} and {args.right} mean the same"])


def _load_recipe(word: str) -> loader.LoadedRecipe:
    return loader.load_recipe(name_or_path(word), lookup.recipe_folders())


class Checked(NamedTuple):
    """The result for one recipe; JSON has the same fields."""

    recipe: str
    files: list[str]
    errors: list[str]
    warnings: list[str]
    judged_by: str = ""
    """Whose table of vLLM's flags judged it, in words; empty where none did."""


def check_recipes(args: argparse.Namespace) -> ExitCode:
    """Print the good recipes, warnings, and what judged them. Raises ConfigError with all that is wrong."""
    gc.disable()  # it takes a third of the time with a file of 60,000 keys, and would free nothing
    host = CachedHost(Host())  # recipes have models in common
    checks, model = list[Checked](), _find_model(args.model, host)
    for word in args.recipes or lookup.find_recipes(lookup.recipe_folders()):
        check = _check_recipe(word, args.memory, host, model)
        checks.append(check)
        if not args.json:
            _print_lines(_describe_check(check))
    faults = [error for check in checks for error in check.errors]
    if args.json:
        console.show_json(recipes=[check._asdict() for check in checks])
        return ExitCode.CONFIG if faults else ExitCode.GOOD
    for judge in dict.fromkeys(check.judged_by for check in checks):
        _print_lines(judge.splitlines())
    if faults:
        raise ConfigError("\n".join(faults))
    return ExitCode.GOOD


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line))


def _find_model(folder: Path | None, host: Host) -> str:
    """The path of --model; empty where it is not given. Raises ConfigError."""
    path = str(folder.absolute()) if folder else ""
    if path and not weights.read_config(host.files, path):
        raise ConfigError(f"{folder}/config.json: --model needs a folder with one, a JSON object of at most 4 MiB")
    return path


def _check_recipe(word: str, memory_bytes: int, host: Host, model: str) -> Checked:
    try:
        loaded, problems = loader.read_recipe(name_or_path(word), lookup.recipe_folders())
    except ConfigError as error:
        return Checked(word, [], [str(error)], [])
    if not loaded:
        return Checked(word, [], [*problems], [])
    vllm = find_recipe_table(host, loaded.recipe)
    errors, warnings = lint(loaded, whole=not problems, memory_bytes=memory_bytes, host=host, vllm=vllm, model=model)
    files = [str(path) for path in loaded.files]
    return Checked(loaded.recipe.name, files, [*problems, *errors], warnings, vllm.judged_by)


def _describe_check(check: Checked) -> Iterator[str]:
    yield from (f"warning: {warning}" for warning in check.warnings)
    if not check.errors:
        count = len(check.warnings)
        suffix = f", with {counted(count, 'warning')}" if count else ""
        yield f"{check.recipe} is good{suffix} ({', '.join(check.files)})"


def import_recipes(args: argparse.Namespace) -> int:
    from sparkd.tools.cli.recipe_import import import_recipes

    return import_recipes(args)
