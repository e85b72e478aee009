"""`sparkd units`: the drop-ins that the configuration needs for systemd's units."""

import argparse
import os

from sparkd.base.config import load_settings, units
from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ConfigError
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import add_action
from sparkd.tools.setup.unit_files import UnitFiles


def add_units(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    render = add_action(actions, "render", "print the units, and the drop-ins that the configuration needs")
    render.add_argument("--role", choices=units.ROLES, help="print the unit of this role alone")
    add_action(actions, "install", "write the drop-ins that the configuration needs, remove those it does not")
    check = add_action(actions, "check", "say what differs from the configuration (exit code 78)")
    console.add_json(check)
    add_action(actions, "remove", "remove the drop-ins that `install` wrote")
    parser.set_defaults(run=manage_units)


def manage_units(args: argparse.Namespace) -> None:
    wanted = units.no_dropins() if args.action == "remove" else units.dropins(load_settings(os.environ))
    if args.action in ("install", "remove"):
        print("\n".join(UnitFiles().install(wanted)) or "nothing to change")
    elif args.action == "check":
        if differences := units.drift(wanted, Files()):
            raise ConfigError("\n".join(differences))
        good = "what systemd runs matches the configuration"
        if args.json:
            console.show_json(text=good)
        else:
            print(good)
    else:
        texts = units.package_units() | {dropin.path: dropin.text for dropin in wanted}
        for path, text in texts.items():
            if text and (args.role is None or units.unit_name(args.role) in path):
                print(f"# {path}\n{text}")
