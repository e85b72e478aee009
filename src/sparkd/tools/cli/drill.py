"""`sparkd drill`: cause one fault on this node, after a yes, and watch how the endpoint comes back."""

import argparse
import os

from sparkd.agent.actions import history
from sparkd.base.host import Host
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.state.history import last_load
from sparkd.tools.cli import console
from sparkd.tools.node import drill


def add_drill(parser: argparse.ArgumentParser) -> None:
    fault_help = f"what to kill: {', '.join(drill.FAULTS)}"
    parser.add_argument("fault", nargs="?", choices=sorted(drill.FAULTS), metavar="FAULT", help=fault_help)
    parser.add_argument("--yes", action="store_true", help="begin without a question")
    parser.epilog = "Without a fault it lists them. Exit code 0: it serves again; 12: it did not come back in time."
    parser.set_defaults(run=run_drill)


def run_drill(args: argparse.Namespace) -> None:
    if not args.fault:
        table = Table([("FAULT", "WHAT HAPPENS"), *drill.FAULTS.items()], heading=True)
        console.show([table, "next: sudo sparkd drill FAULT"])
        return
    host = Host()
    if os.geteuid():
        raise UsageError("only root may end a rank", AS_ROOT)
    before = drill.read_serving(host)
    target, load = drill.find_target(args.fault, host, before), last_load(history.read(host.files))
    outcome = drill.foretell(args.fault, host, before.role, load)
    print(f"{drill.FAULTS[args.fault]}: {target.title}, pid {target.pid}. {outcome}", flush=True)
    if not console.confirm_unless(args.yes, "begin? [y/N] ", f"sudo sparkd drill {args.fault} --yes"):
        raise UsageError("not begun: nothing was touched")
    drill.kill(target)
    print("    0.0 s  killed", flush=True)
    limit_seconds = max(drill.LEAST_SECONDS, drill.LOADS * (load or 0))
    seconds, after = drill.follow(before, host, limit_seconds, lambda line: print(line, flush=True))
    if after.launch_id == before.launch_id:
        print(f"the next agent has the rank after {seconds:.1f} s, and the engine served on\nnothing is to be done")
        return
    print(f"serves again after {seconds:.1f} s" + (f"; the load before took {load:.1f} s" if load else ""))
    print(f"reported cause: {sanitize(after.last_cause, 1000) or 'none: the agent has not noticed an end'}")
    print("nothing is to be done")
