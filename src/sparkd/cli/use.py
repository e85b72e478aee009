"""`sparkd use`: another recipe, by one command on the head, and the way back by itself where it does not serve.

It checks before it changes anything, then writes the switch, which the running agent sees; see `agent/switching.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from sparkd.cli import console
from sparkd.cluster import membership
from sparkd.cluster.inventory import Inventories, find_missing_elsewhere, request_inventories
from sparkd.config import Settings, load_settings
from sparkd.host import Host
from sparkd.lib.errors import ConfigError, ExitCode, UsageError
from sparkd.lib.text import Table, parse_time, sanitize
from sparkd.preflight.next_start import NextStart
from sparkd.recipes.loader import find_recipes, recipe_folders
from sparkd.state import known_good
from sparkd.state.switch import MOST_BACK, Chosen, Stage, Switch, label, make_rollback
from sparkd.status.model import Phase, parse, read_living_report, read_report, utc_now
from sparkd.tools.switching import (
    findings_of,
    follow,
    image_id,
    load_chosen,
    read_choice,
    refuse_blocked,
    refuse_worker,
    write_switch,
)

LONGEST_DRAIN_SECONDS, LONGEST_USE_SECONDS = 3600, 90 * 86400
SHORTEST_USE_SECONDS = 60
BY_RECIPE = ("script-paths", "plan-lint", "weights", "image", "unified-memory")
"""Checks whose outcome a recipe decides."""


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
        console.show([listed(config, host)])
        return ExitCode.GOOD
    before = read_choice(host)
    switch = _choose(None if args.end else args.recipe, span, drain, before, config, host)
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


def _choose(
    name: str | None, span: int, drain: int, found: Switch | None, config: Settings, host: Host
) -> Switch | None:
    """The switch to a recipe, or to what is configured; None where that holds. Raises what keeps the node from it.

    `found`: the choice that the file has now.
    """
    replaces = membership.fingerprint_config(config, host)
    now = found if found is not None and found.replaces == replaces else None
    to = None if name in (None, config.engine.recipe) and not span else load_chosen(name or "", span, config, host)
    node = membership.make_context(config, host, to)
    if now is None and to is None:
        return None
    if now is not None and now.stage is Stage.IN_FORCE and now.to is not None and now.to.is_same_plan(to):
        return None if now.to == to else replace(now, to=to)
    refuse_blocked(node, findings_of(node, host, config), config, host)
    back = _plans_before(now, config, host)[:MOST_BACK]
    return Switch(replaces, Stage.DRAINING, to, back, 0, drain, utc_now())


def _plans_before(now: Switch | None, config: Settings, host: Host) -> tuple[Chosen, ...]:
    """What to go back to: what is in force; the last known good plan where that is neither known good nor serves."""
    before = now.plans if now is not None else ()
    report, known = parse(read_report(host.files)), known_good.read_known_good(host.files)
    if not known or (report is not None and report.phase in (Phase.SERVING, Phase.DEGRADED)):
        return before
    with suppress(ConfigError):
        plan = membership.make_context(config, host, before[0] if before else None).plan
        if any(one.plan == plan.digest for one in known):
            return before
    found = make_rollback(known[0], "", known[0].image_id if image_id(host, known[0].image_id) else "")
    return (found.to,) if found is not None and found.to is not None else before


def listed(config: Settings, host: Host) -> Table:
    """One line a recipe: whether it could be used now, or why not."""
    now, seen, nodes = membership.current_switch(config, host), NextStart(host), request_inventories(config, host)
    in_force = now.chosen if now is not None else None
    name = in_force.recipe.name if in_force is not None else config.engine.recipe
    chosen = "in force" if now is None or now.stage is Stage.IN_FORCE else "on the way"
    rows = [("RECIPE", "NOW", "")]
    for one in find_recipes(recipe_folders(Path(host.files.root))):
        reason = _why_not(one, config, seen, nodes)
        rows.append((one, chosen if one == name else "no" if reason else "yes", sanitize(reason)))
    return Table(rows, heading=True)


def _why_not(name: str, config: Settings, host: Host, nodes: Inventories) -> str:
    """Empty where it could be used."""
    try:
        node = membership.make_context(config, host, load_chosen(name, 0, config, host))
    except ConfigError as error:
        return error.reason.splitlines()[0].partition("; chosen for")[0]
    found = findings_of(node, host, config, BY_RECIPE)
    return f"{found[0].id}: {found[0].verdict.reason}" if found else next(find_missing_elsewhere(node, nodes), "")
