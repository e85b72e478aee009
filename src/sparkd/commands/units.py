"""`sparkd units`: render, install, check and remove what systemd runs."""

from __future__ import annotations

import argparse
import os

from sparkd.errors import ConfigError, ExitCode

ROLES = ("head", "worker")


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    render = actions.add_parser("render", help="print the units, and the drop-ins that the configuration needs")
    render.add_argument("--role", choices=ROLES, help="of one role only")
    actions.add_parser("install", help="write the drop-ins that the configuration needs, remove those it does not")
    actions.add_parser("check", help="say what differs from the configuration (exit code 78)")
    actions.add_parser("remove", help="remove the drop-ins that `install` wrote")


def run(args: argparse.Namespace) -> int:
    if args.action == "render":
        _render(ROLES if args.role is None else (args.role,))
    elif args.action == "check":
        _check()
    else:
        _change(args.action)
    return ExitCode.GOOD


def _render(roles: tuple[str, ...]) -> None:
    from sparkd import settings, units

    configured = settings.load(None, os.environ)
    for role in roles:
        print(f"# {units.PACKAGE_UNITS}/{units.unit_name(role)}\n{units.render(role)}")
        if dropin := units.render_dropin(configured, role):
            print(f"# {units.DropIn(role, dropin).path}\n{dropin}")


def _check() -> None:
    from sparkd import settings, units
    from sparkd.host.files import Files

    found = units.drift(units.dropins(settings.load(None, os.environ)), Files())
    if found:
        raise ConfigError("\n".join(found))
    print("what systemd runs matches the configuration")


def _change(action: str) -> None:
    from sparkd import settings, units
    from sparkd.hands.unit_files import UnitFiles
    from sparkd.host.files import Files

    if action == "remove":
        changes = units.remove(Files(), UnitFiles())
    else:
        changes = units.install(units.dropins(settings.load(None, os.environ)), Files(), UnitFiles())
    for change in changes:
        print(f"{'wrote' if change.written else 'removed'} {change.path}")
    if not changes:
        print("nothing to change")
