"""`sparkd init`, `units` and `tune`: the cluster's key, systemd's drop-ins, the recipe's kernel settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from sparkd.actions import files
from sparkd.actions.system_config import HEADER, PATH, SysctlManager, UnitFiles
from sparkd.cluster.auth import read_keys
from sparkd.config import load_settings, units
from sparkd.host.files import Files
from sparkd.lib.errors import ConfigError, UsageError
from sparkd.lib.text import Table
from sparkd.recipes.loader import load_recipe, recipe_folders
from sparkd.recipes.schema import Recipe

NEW_KEY = "--new-cluster-key"
KEY_BYTES = 32
KEY_HEADER = "# Key of the cluster, the same on all its nodes: the first line signs, every line is accepted."
HEADINGS = ("SETTING", "NOW", "PROPOSED", "BEFORE SPARKD")


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(NEW_KEY, action="store_true", help="make a key, on one node; the others get a copy of the file")
    parser.add_argument(
        "--rotate", action="store_true", help="put the new key above the one that there is, on one node"
    )
    parser.set_defaults(run=init)


def init(args: argparse.Namespace) -> None:
    if not args.new_cluster_key:
        raise UsageError("nothing to make", f"sparkd init {NEW_KEY}")
    if os.geteuid():
        raise UsageError("only root may make the key of a cluster", f"sudo sparkd init {NEW_KEY}")
    path = load_settings(os.environ).cluster.key_file
    print(rotate_key(path) if args.rotate else create_key(path))


def create_key(path: str) -> str:
    """Write a new key where there is no file; what to do next. Raises UsageError."""
    if os.path.lexists(path):
        hint = f"sparkd init {NEW_KEY} --rotate puts a new key above it"
        raise UsageError(f"{path} exists, and is never overwritten", hint)
    return f"wrote {path}\n{_write_key(path, over=False)}"


def rotate_key(path: str) -> str:
    """Put a new key above the first one that there is; what to do next. Raises UsageError, ConfigError."""
    old, *older = read_keys(Files(), path, os.geteuid())
    if older:
        hint = "take the old lines away first, once all nodes have the new key"
        raise UsageError(f"{path} has {1 + len(older)} keys: the rotation before is not complete", hint)
    return (
        f"wrote {path}: a new key, with the old one below it\n{_write_key(path, old.hex())}\n"
        "when all nodes have it, take the last line away on each of them; running agents need no restart"
    )


def _write_key(path: str, *old_keys: str, over: bool = True) -> str:
    """What to do next."""
    lines = [KEY_HEADER, os.urandom(KEY_BYTES).hex(), *old_keys, ""]
    with files.usage_error(f"{path} can't be written", f"ls -ld {Path(path).parent}"):
        files.write(Path(path), "\n".join(lines), 0o600, durable=True, over=over)
    return f"next: copy {path} to each other node, of root there too and with mode 0600; make no other key there"


def add_units(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    render = actions.add_parser("render", help="print the units, and the drop-ins that the configuration needs")
    render.add_argument("--role", choices=units.ROLES, help="of one role only")
    actions.add_parser("install", help="write the drop-ins that the configuration needs, remove those it does not")
    actions.add_parser("check", help="say what differs from the configuration (exit code 78)")
    actions.add_parser("remove", help="remove the drop-ins that `install` wrote")
    parser.set_defaults(run=manage_units)


def manage_units(args: argparse.Namespace) -> None:
    if args.action == "remove":
        print("\n".join(UnitFiles().remove()) or "nothing to change")
        return
    wanted = units.dropins(load_settings(os.environ))
    if args.action == "install":
        print("\n".join(UnitFiles().install(wanted)) or "nothing to change")
    elif args.action == "check":
        if found := units.drift(wanted, Files()):
            raise ConfigError("\n".join(found))
        print("what systemd runs matches the configuration")
    else:
        texts = units.package_units() | {one.path: one.text for one in wanted}
        for path, text in texts.items():
            if text and (args.role is None or units.unit_name(args.role) in path):
                print(f"# {path}\n{text}")


def add_tune(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("show", help="print what is set, what is proposed and why")
    actions.add_parser("apply", help="set what is proposed, now and at each boot")
    actions.add_parser("revert", help="take it back: the values that were set before")
    parser.set_defaults(run=tune)


def tune(args: argparse.Namespace) -> None:
    if args.action != "show" and os.geteuid():
        raise UsageError("only root may set the kernel", f"sudo sparkd tune {args.action}")
    if args.action == "revert":
        lines = revert_tuning(SysctlManager())
    else:
        recipe = load_recipe(load_settings(os.environ).engine.recipe, recipe_folders()).recipe
        lines = (show_tuning if args.action == "show" else apply_tuning)(SysctlManager(), recipe)
    print("\n".join(lines))


def show_tuning(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    manager.file_content()  # one not written by sparkd is an error here too
    proposed, before = recipe.host.sysctls, manager.saved()
    names = sorted({*proposed, *before})
    if names:
        cells = ((name, manager.current(name), proposed.get(name), before.get(name)) for name in names)
        yield str(Table([HEADINGS, *(tuple(cell or "-" for cell in row) for row in cells)]))
        yield ""
    yield _source(recipe)


def apply_tuning(manager: SysctlManager, recipe: Recipe) -> Iterator[str]:
    if not recipe.host.sysctls:
        yield _source(recipe)
        yield from revert_tuning(manager)
        return
    yield from manager.apply(recipe.host.sysctls, sysctl_file(recipe))
    yield f"{PATH} sets {len(recipe.host.sysctls)} at each boot; `sparkd tune revert` takes that back"


def revert_tuning(manager: SysctlManager) -> Iterator[str]:
    yield from manager.revert() or ["nothing to take back"]


def sysctl_file(recipe: Recipe) -> str:
    lines = [f"{name} = {value}" for name, value in sorted(recipe.host.sysctls.items())]
    head = f"{HEADER}; `sparkd tune revert` removes it and gives back what was set before."
    return "\n".join([head, f"# {_source(recipe)}", *lines, ""])


def _source(recipe: Recipe) -> str:
    if not recipe.host.sysctls:
        return f"recipe {recipe.name} has no kernel settings"
    return " ".join(f"from recipe {recipe.name}: {recipe.source}".split()).removesuffix(":")
