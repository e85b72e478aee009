"""`sparkd use`: another recipe, by one command on the head, and the way back by itself where it does not serve.

It checks before it changes anything, then writes the switch, which the running agent sees; see `agent/switching.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from sparkd.cli import console
from sparkd.config import load_settings
from sparkd.host import Host
from sparkd.lib.errors import ExitCode, UsageError
from sparkd.lib.text import parse_time
from sparkd.state.switch import label
from sparkd.status.report_file import read_living_report
from sparkd.tools.switching import (
    follow,
    list_usable,
    make_switch,
    read_choice,
    refuse_worker,
    write_switch,
)

LONGEST_DRAIN_SECONDS, LONGEST_USE_SECONDS = 3600, 90 * 86400
SHORTEST_USE_SECONDS = 60


def add_use(parser: argparse.ArgumentParser) -> None:
    named = "name of a recipe, or the absolute path of its file"
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", default="", help=named)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print which recipes could be used now, and why others not")
    form.add_argument("--end", action="store_true", help="go back to what is configured")
    parser.add_argument("--for", dest="time", metavar="TIME", help="such as 2h: then it goes back by itself")
    parser.add_argument("--drain", metavar="TIME", default="60s", help="for requests that run (60s)")
    parser.epilog = "The new plan is what an edit of engine.recipe would make: the section `engine` holds for it too."
    parser.set_defaults(run=use)


def use(args: argparse.Namespace) -> int:
    if bool(args.recipe) + args.list + args.end != 1:
        raise UsageError("a recipe, --list or --end is needed", "sparkd use --list")
    if args.time and not args.recipe:
        raise UsageError("--for is the time of a recipe", "sparkd use RECIPE --for 2h")
    drain = parse_time("--drain", args.drain, 0, LONGEST_DRAIN_SECONDS)
    span = parse_time("--for", args.time, SHORTEST_USE_SECONDS, LONGEST_USE_SECONDS) if args.time else 0
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", f"sudo {' '.join(['sparkd', *sys.argv[1:]])}")
    config, host = load_settings(os.environ), Host()
    refuse_worker(config, host)
    if args.list:
        console.show([list_usable(config, host)])
        return ExitCode.GOOD
    before = read_choice(host)
    switch = make_switch(None if args.end else args.recipe, span, drain, before, config, host)
    if switch is None:
        print("what is configured holds already" if args.end else f"recipe {args.recipe} is in force already")
        return ExitCode.GOOD
    write_switch(before, switch, host)
    if read_living_report(host.files) is None:
        print(f"{label(switch.to)} holds from the next start on: systemctl start sparkd-head")
        return ExitCode.GOOD
    print(f"on the way to {label(switch.to)}; it continues without this command: sparkd status", flush=True)
    if why := follow(switch, host, partial(print, flush=True)):
        print(f"sparkd: {why}", file=sys.stderr)
        return ExitCode.NOT_READY
    print(f"{label(switch.to)} is in force")
    return ExitCode.GOOD
