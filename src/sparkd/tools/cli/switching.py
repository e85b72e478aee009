"""`sparkd diff`, `rollback` and `use`: what differs from the last known good start, and changes of the plan in force.

`use` changes to another recipe or image by one command on the head, and goes back by itself where that does not serve.
A rollback is one file of state, which the next start reads: it ends nothing, and works while an agent loops or is down.
`use` checks before it changes anything, then writes the switch, which the running agent sees:
`agent/daemon/switching.py`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sparkd.base.cluster import membership
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT, AddressAwaitedError, ConfigError, ExitCode, UsageError
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.lib.times import format_utc, parse_time
from sparkd.base.recipes.lookup import NOT_SET_UP, SET_UP_HINT
from sparkd.base.state.known_good import Entry
from sparkd.base.state.switch import Stage, Switch, label
from sparkd.base.status.model import read_living_report
from sparkd.tools.cli import console
from sparkd.tools.cli.parser import name_or_path
from sparkd.tools.measure.image_trial import ImageTrial
from sparkd.tools.measure.measuring import only_one
from sparkd.tools.node import known_good, switching
from sparkd.tools.node.known_good import configured_plan
from sparkd.tools.node.rollback import end_rollback, roll_back
from sparkd.tools.node.switch_progress import follow

HEADINGS = ("PLAN", "RECIPE", "KNOWN GOOD SINCE", "LAST PROVEN", "IMAGE", "")


def add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = "What most likely matters comes first. The exit code is 0 whether anything differs or not."
    parser.set_defaults(run=diff)


def add_rollback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", default="", help="how the digest of a plan begins, as --list shows it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="print the plans that are known good, the last one first")
    parser.add_argument("--json", action="store_true", help="with --list: print one JSON object")
    form.add_argument("--end", action="store_true", help="let the configuration hold again from the next start on")
    parser.set_defaults(run=rollback)


def diff(args: argparse.Namespace) -> None:
    host, config = Host(), load_settings(os.environ)
    plans = known_good.read_known_good(host)
    if not plans:
        print(known_good.as_json(None, None) if args.json else _explain_no_plan(config))
        return
    facts = known_good.gather_facts(host, membership.make_context(config, host).plan)
    if args.json:
        print(known_good.as_json(plans[0], facts))
        return
    switch = membership.resolve_context(config, None, host).switch
    for finding in switch.findings if switch is not None else ():
        print(f"{finding.reason}; compared is what is configured")
    print(known_good.as_text(plans[0], facts))


def _explain_no_plan(config: Settings) -> str:
    return (
        "no start is known good on this node yet: one that has served for "
        f"{config.supervise.proven_seconds} s (supervise.proven_seconds) becomes that"
    )


def rollback(args: argparse.Namespace) -> None:
    if args.plan and (args.list or args.end):
        raise UsageError("a plan is named to go back to it, without --list and --end")
    _refuse_json(args)
    config, host = load_settings(os.environ), Host()
    if args.list:
        plans = known_good.read_known_good(host)
        if plans or args.json:
            console.show_table(list_plans(plans, config, host), "known_good", as_json=args.json)
        else:
            print(_explain_no_plan(config))
        return
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", AS_ROOT)
    with suppress(AddressAwaitedError):
        if membership.follows_head(config, place := membership.find_place(config, host)):
            reason = f"this node runs what its head, {place.head_address}, decides (cluster.follow_head)"
            raise UsageError(reason, f"on {place.head_address}: sudo sparkd rollback")
    for line in end_rollback(config, host) if args.end else roll_back(args.plan, config, host):
        print(line, flush=True)  # at once: a later step may hang at a dead disk of a model


def list_plans(plans: Sequence[Entry], config: Settings, host: Host) -> Table:
    """A table with a row for each plan that is known good."""
    configured, chosen = configured_plan(config, host), None
    with suppress(ConfigError):
        switch = membership.resolve_context(config, None, host).switch
        chosen = switch.chosen if switch is not None else None
    rows: list[tuple[str, ...]] = [HEADINGS]
    for plan in plans:
        digest, image = plan.plan_digest[: known_good.DIGITS], plan.image_id.removeprefix("sha256:")
        cells = (digest, plan.name, format_utc(plan.since), format_utc(plan.until), image[: known_good.DIGITS])
        marks = []
        if configured is not None and configured.digest == plan.plan_digest:
            marks.append("configured")
        if chosen is not None and chosen.plan == plan.plan_digest and chosen.image_id in ("", plan.image_id):
            marks.append("rolled back to")  # also once it has proven itself again, at another time
        rows.append((*(sanitize(cell, 80) for cell in cells), ", ".join(marks)))
    return Table(rows)


def add_use(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", type=name_or_path, default="", help="name or file")
    form = parser.add_mutually_exclusive_group()
    parser.add_argument("--json", action="store_true", help="with --list: print one JSON object")
    form.add_argument("--list", action="store_true", help="print which recipes could be used now, and why others not")
    form.add_argument("--end", action="store_true", help="go back to what is configured")
    form.add_argument("--image", metavar="REF", default="", help="try another image for the recipe in force")
    parser.add_argument("--no-bench", action="store_true", help="with --image: compare no speed, smoke-test only")
    parser.add_argument("--for", dest="time", metavar="TIME", help="how long, such as 2h; then it goes back by itself")
    parser.add_argument("--drain", metavar="TIME", default="60s", help="time to finish for requests that run (60s)")
    parser.epilog = "The new plan is what an edit of engine.recipe would make: the section `engine` holds for it too."
    parser.set_defaults(run=use)


def use(args: argparse.Namespace) -> int:
    _refuse_combination(args)
    drain_seconds = parse_time("--drain", args.drain, 0, 3600)
    use_seconds = parse_time("--for", args.time, 60, 90 * 86400) if args.time else 0  # 0: without an end
    if os.geteuid():
        raise UsageError("only root may choose what this node runs", AS_ROOT)
    config, host = load_settings(os.environ), Host()
    switching.refuse_worker(config, host)
    if not config.engine.recipe and membership.current_switch(config, host) is None:
        raise ConfigError(NOT_SET_UP, SET_UP_HINT)
    if args.list:
        console.show_table(switching.list_usable(config, host), "recipes", as_json=args.json)
        return ExitCode.GOOD
    current = switching.read_choice(host)
    choice = None  # --end: what is configured
    if args.recipe:
        choice = switching.choose_recipe(args.recipe, use_seconds, config, host)
    elif args.image:
        choice = switching.exchange_image(args.image, use_seconds, config, host)
    switch = switching.make_switch(choice, drain_seconds, current, config, host)
    if switch is None:
        what = f"image {args.image}" if args.image else f"recipe {args.recipe}"
        print("what is configured holds already" if args.end else f"{what} is in force already")
        return ExitCode.GOOD
    if args.image and not args.no_bench:
        return _try_image(args.image, switch, current, config, host)
    return _carry_out(switch, current, args.image, config, host)


def _carry_out(switch: Switch, before: Switch | None, ref: str, config: Settings, host: Host) -> int:
    """Have the agent switch, and print how that goes. `ref`: as in `switching.describe_outcome`."""
    switching.write_switch(before, switch, host)
    if read_living_report(host.files) is None:
        print(f"{label(switch.to)} holds from the next start on: sudo systemctl start sparkd-head")
        return ExitCode.GOOD
    print(f"on the way to {label(switch.to)}; it continues without this command: sparkd status", flush=True)
    if fault := follow(switch, host, partial(print, flush=True)):
        print(f"sparkd: {fault}", file=sys.stderr)
        return ExitCode.NOT_READY
    print("\n".join(switching.describe_outcome(switch, ref, config.engine.recipe)))
    return ExitCode.GOOD


def _try_image(ref: str, switch: Switch, before: Switch | None, config: Settings, host: Host) -> int:
    """Switch to the image, and compare its speed with the one before."""
    if switch.stage is not Stage.DRAINING:
        keep = f"sudo sparkd use --image {ref} --no-bench keeps it, sudo sparkd use --end goes back"
        chosen = label(before.to if before else None)
        raise UsageError(f"{chosen} is in force already: there is no other to compare", keep)
    is_interrupted = False
    with only_one():
        try:
            fault = ImageTrial(switch, config, host, partial(print, flush=True)).run(before)
        except KeyboardInterrupt:
            fault, is_interrupted = "interrupted", True
    if not fault:
        print("\n".join(switching.describe_outcome(switch, ref, config.engine.recipe)))
        return ExitCode.GOOD
    current = switching.read_choice(host)
    state = f"this node runs, or is on the way to: {label(current.chosen if current else None)}; sparkd status"
    print(f"sparkd: {fault}\n{state}", file=sys.stderr)
    return 130 if is_interrupted else ExitCode.NOT_READY


def _refuse_json(args: argparse.Namespace) -> None:
    """Raise UsageError for --json with an action: that prints lines while it works."""
    if args.json and not args.list:
        raise UsageError("--json is of --list alone", f"sudo sparkd {args.command} --list --json")


def _refuse_combination(args: argparse.Namespace) -> None:
    """Raise UsageError for options of `use` that do not go together."""
    if bool(args.recipe) + bool(args.image) + args.list + args.end != 1:
        raise UsageError("a recipe, --image, --list or --end is needed", "sudo sparkd use --list")
    _refuse_json(args)
    if args.time and not (args.recipe or args.image):
        raise UsageError("--for is the time of a recipe or an image", "sudo sparkd use RECIPE --for 2h")
    if args.no_bench and not args.image:
        raise UsageError("--no-bench is for --image alone", "sudo sparkd use --image REF --no-bench")
