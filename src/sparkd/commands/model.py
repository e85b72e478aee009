"""`sparkd model`: the files of a model, on this node and the others."""

from __future__ import annotations

import argparse

from sparkd.commands import model_check, model_pull, model_sync

ACTIONS = {"check": model_check, "pull": model_pull, "sync": model_sync}


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ACTIONS.values():
        action.arguments(actions)


def run(args: argparse.Namespace) -> int:
    return int(ACTIONS[args.action].run(args))
