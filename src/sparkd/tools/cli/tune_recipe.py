"""`sparkd tune-recipe`: climb with one knob at a time, and keep the best as a recipe of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT, ExitCode, UsageError
from sparkd.base.state.switch import fingerprint_engine
from sparkd.tools.cli import console
from sparkd.tools.measure.climb import FILE, Climb, Tuning
from sparkd.tools.measure.knobs import WIDEST_BOUNDS, list_warnings, read_knobs
from sparkd.tools.measure.ladder_ends import announce, choose_load, refuse_name, refuse_without_effect, write_best
from sparkd.tools.measure.measuring import only_one
from sparkd.tools.node.switching import load_chosen, refuse_worker


def add_tune_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="name of the recipe to begin with")
    knob_help = "a flag and its bounds, such as max-num-seqs=4..16; several are tried in this order"
    parser.add_argument("--knob", metavar="FLAG=LOW..HIGH", action="append", default=[], help=knob_help)
    parser.add_argument("--name", metavar="NAME", help="name of the recipe to write (RECIPE-tuned)")
    parser.add_argument("--yes", action="store_true", help="begin without a question")
    parser.add_argument("--despite-warnings", action="store_true", help="with --yes: also try what reports warn of")
    parser.epilog = f"FLAG is one of {', '.join(WIDEST_BOUNDS)}"
    parser.set_defaults(run=tune_recipe, as_root=("only root may choose what this node runs", AS_ROOT))


def tune_recipe(args: argparse.Namespace) -> int:
    config, host = load_settings(os.environ), Host()
    refuse_worker(config, host)
    base, name = load_chosen(args.recipe, 0, config, host), args.name or f"{args.recipe}-tuned"
    refuse_name(args.recipe, name, host)
    knobs = read_knobs(args.knob, base.recipe)
    refuse_without_effect(knobs, base, config, host)
    with only_one():
        tuning = Tuning(name, fingerprint_engine(base.engine, base.recipe), knobs, choose_load(knobs, base))
        tuning = resume(tuning, host)
        climb = Climb(tuning, base, config, host, partial(print, flush=True))
        print("\n".join(announce(tuning, base, host)), flush=True)
        confirm(args, tuple(list_warnings(knobs, base.recipe)))
        try:
            with climb:
                write_best(base, climb, climb.run(), host, print)
        except KeyboardInterrupt:
            print("sparkd: interrupted; the same command continues from here", file=sys.stderr)
            return 130
    return ExitCode.GOOD


def resume(begun: Tuning, host: Host) -> Tuning:
    """The tuning on file if it is of the same ladder, else `begun`. Raises OSError: no kept step must be lost."""
    kept = FILE.load(host.files, partial(print, "dropped:"))
    if kept is not None and replace(kept, measured=(), tried=None, tries=0) == begun:
        return kept
    if kept is not None and kept.measured:
        print(f"dropped: steps of {kept.name} with other arguments or settings: {len(kept.measured)} measured")
    return begun


def confirm(args: argparse.Namespace, warnings: Sequence[str]) -> None:
    """Print the warnings, and have a person confirm the beginning. Raises UsageError where that is refused."""
    for warning in warnings:
        print(f"warning: {warning}", flush=True)
    if args.yes and warnings and not args.despite_warnings:
        raise UsageError("reports warn of that", "narrower bounds, or --despite-warnings")
    if not console.confirm_unless(args.yes, "begin? [y/N] ", "--yes begins without a question"):
        raise UsageError("not begun: nothing is changed")
