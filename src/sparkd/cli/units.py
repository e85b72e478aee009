"""`sparkd units`: render, install, check and remove what systemd runs."""

from __future__ import annotations

import argparse
import os

from sparkd.config import units
from sparkd.lib.errors import ConfigError, ExitCode


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    render = actions.add_parser("render", help="print the units, and the drop-ins that the configuration needs")
    render.add_argument("--role", choices=units.ROLES, help="of one role only")
    actions.add_parser("install", help="write the drop-ins that the configuration needs, remove those it does not")
    actions.add_parser("check", help="say what differs from the configuration (exit code 78)")
    actions.add_parser("remove", help="remove the drop-ins that `install` wrote")


def run(args: argparse.Namespace) -> int:
    from sparkd.actions.system_config import UnitFiles
    from sparkd.config import load_settings
    from sparkd.host.files import Files

    if args.action == "remove":
        print("\n".join(UnitFiles().remove()) or "nothing to change")
        return ExitCode.GOOD
    configured = load_settings(os.environ)
    if args.action == "install":
        print("\n".join(UnitFiles().install(units.dropins(configured))) or "nothing to change")
    elif args.action == "check":
        if found := units.drift(units.dropins(configured), Files()):
            raise ConfigError("\n".join(found))
        print("what systemd runs matches the configuration")
    else:
        for dropin in units.dropins(configured):
            if args.role in (None, dropin.role):
                print(f"# {units.PACKAGE_UNITS}/{units.unit_name(dropin.role)}\n{units.render(dropin.role)}")
                if dropin.text:
                    print(f"# {dropin.path}\n{dropin.text}")
    return ExitCode.GOOD
